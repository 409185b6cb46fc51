// ipip.ts - the ipip backend: IP in IP (RFC 2003) carried by the kernel, with one device and a route to each peer's subnet through the
// peer's host.
//
// The device, the routes, the lease and the error texts are those of flanneld (pkg/backend/ipip). There is no UDP port; firewalls between
// the hosts must let IP protocol 4 pass.

import { WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { carryIpv4Alone, ipv4For } from '../../control/config/network-config.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../../control/lease/lease.ts'
import type { Run } from '../../host/command.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { addDevice, FollowedLink, ipJson } from '../../host/links.ts'
import type { Net } from '../../net/address.ts'
import { formatIpv4 } from '../../net/ipv4.ts'
import { KINDS } from '../catalog.ts'
import type { Backend, BackendParts, DataPath, PathSide } from '../contract.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import { deviceState, type DeviceState } from '../device/device-state.ts'
import { findEarlier } from '../device/flannel-devices.ts'
import { ROUTE_WORDS, type NextHop } from '../device/route-sync.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'
import { RoutedPath, type RoutedParts } from './kernel-path.ts'

const TYPE = 'ipip'
const NEEDS = `the ${TYPE} backend`
const { overhead, devices } = KINDS.ipip
const [[, NAME]] = devices

const OTHER_TYPE = `${NAME} isn't an ipip mode device, please remove device and try again`

interface JsonIpip {
  readonly linkinfo?: {
    readonly info_kind?: string
    readonly info_data?: { readonly local?: string; readonly remote?: string }
  }
}

export function createIpipBackend({ config, settings, external: found, run, log }: BackendParts<'ipip'>): Backend {
  let external = found
  const { directRouting } = settings
  log.info(`IPIP config: DirectRouting=${directRouting}`)
  return {
    name: TYPE,
    devices: [NAME],
    routesToHosts: directRouting,
    get external() {
      return external
    },
    words: ROUTE_WORDS,
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      carryIpv4Alone(NEEDS, config, log)
      return { publicIp: external.publicIp, backendType: TYPE }
    },
    needs: () => [
      {
        device: {
          name: NAME,
          type: TYPE,
          networks: { ipv4: config.ipv4?.network },
          replaces: [],
          local: formatIpv4(ipv4For(NEEDS, external.address)),
          refusal: OTHER_TYPE,
        },
      },
    ],
    plan: () => [
      {
        families: ['ipv4'],
        mtu: external.mtu - overhead,
        external: { families: ['ipv4'], isBound: true },
        open,
      },
    ],
  }

  async function open(own: OwnLease): Promise<DataPath> {
    const mtu = external.mtu - overhead
    const { network } = ipv4For(NEEDS, config)
    const { address } = ipv4For(NEEDS, own.subnet)
    const link = new FollowedLink(NAME)
    await findEarlier(link, run, TYPE, [address], log)
    const local = formatIpv4(ipv4For(NEEDS, external.address))
    const device = new IpipDevice(link, local, deviceState(run, link, mtu, address, network), run, log)
    await device.open()
    const filter = new PeerFilter<Net>({ type: TYPE, lease: own, network, log })
    const parts = { network, device: link, probeSource: address, filter, directRouting, run, log }
    return new IpipPath({ family: 'ipv4', ...parts }, link, device)
  }
}

/** The data path: the next hop of each peer's subnet is the peer's host, through the device. */
class IpipPath extends RoutedPath {
  readonly #link: FollowedLink
  readonly #device: IpipDevice

  constructor(parts: RoutedParts, link: FollowedLink, device: IpipDevice) {
    super(parts)
    this.#link = link
    this.#device = device
  }

  protected override repairDevice(): Promise<readonly string[]> {
    return this.#device.repair()
  }

  protected hopTo(peer: Lease): NextHop {
    return { gateway: this.hostOf(peer), device: this.#link, onlink: true }
  }

  protected sideTo(peer: Lease): PathSide {
    return { endpoint: this.hostOf(peer), probe: this.sideOf(peer).subnet.address, way: 'kernel' }
  }
}

class IpipDevice {
  /** The device, which another program may rename. */
  readonly #link: FollowedLink
  /** The outer source address of the device, as text. */
  readonly #local: string
  /** The device's MTU, address and link state. */
  readonly #state: DeviceState
  readonly #run: Run
  readonly #log: Log

  constructor(link: FollowedLink, local: string, state: DeviceState, run: Run, log: Log) {
    this.#link = link
    this.#local = local
    this.#state = state
    this.#run = run
    this.#log = log
  }

  /** Finds or creates the device and configures it. A new device that cannot be configured is deleted. */
  async open(): Promise<void> {
    const made = await this.#ensure()
    try {
      await this.#state.configure()
    } catch (error) {
      if (made.length > 0) await this.#run('ip', ['link', 'del', this.#link.name]).catch(() => {})
      throw error
    }
  }

  /** Repairs the device, and returns a description of each repair. */
  async repair(): Promise<readonly string[]> {
    const remade = await this.#ensure()
    const wrong = remade.length > 0 ? remade : await this.#state.wrong()
    if (wrong.length > 0) await this.#state.configure()
    return wrong
  }

  /**
   * Finds or creates the device and returns a description of each repair. Throws WeftError DEVICE; NO_DEVICE_TYPE if the kernel lacks ipip.
   */
  async #ensure(): Promise<readonly string[]> {
    const link = this.#link
    if (!(await link.follow(this.#run, this.#log))) {
      const wrong = `${link.name} was gone`
      link.forget()
      await this.#make()
      return [wrong]
    }
    const [json] = await ipJson<JsonIpip>(this.#run, ['-d', 'link', 'show', 'dev', link.name])
    const { info_kind: kind = 'none', info_data: data = {} } = json?.linkinfo ?? {}
    if (kind !== TYPE)
      throw new WeftError('DEVICE', OTHER_TYPE, {
        remedy: `it is of type ${kind}: remove it with \`ip link del ${link.name}\``,
      })
    const { local: isLocal = 'any', remote: isRemote = 'any' } = data
    if (isLocal === this.#local && isRemote === 'any') return []
    const wrong = `${link.name} went from ${isLocal} to ${isRemote}`
    await this.#run('ip', ['link', 'del', link.name])
    link.forget()
    await this.#make()
    return [wrong]
  }

  async #make(): Promise<void> {
    const { name } = this.#link
    await sayingWhoHasIt(this.#run, { name }, () => addDevice(this.#run, name, TYPE, [], ['local', this.#local]))
    await this.#link.find(this.#run)
  }
}

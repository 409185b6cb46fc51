// ipip.ts - the ipip backend: IP in IP (RFC 2003) carried by the kernel, with one device and a route to each peer's subnet through the
// peer's host.
//
// The device, the routes, the lease and the error texts are those of flanneld (pkg/backend/ipip). There is no UDP port; firewalls between
// the hosts must let IP protocol 4 pass.

import { WeftError } from '../../base/errors.ts'
import { carryIpv4Alone, ipv4For } from '../../control/config/network-config.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../../control/lease/lease.ts'
import type { Run } from '../../host/command.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { addDevice, findLink, ipJson } from '../../host/links.ts'
import type { Net } from '../../net/address.ts'
import { formatIpv4 } from '../../net/ipv4.ts'
import { KINDS } from '../catalog.ts'
import type { Backend, BackendParts, DataPath, PathSide } from '../contract.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import { deviceState, type DeviceState } from '../device/device-state.ts'
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
        external: { families: ['ipv4'], isBound: true, isByName: true },
        open,
      },
    ],
  }

  async function open(own: OwnLease): Promise<DataPath> {
    const mtu = external.mtu - overhead
    const { network } = ipv4For(NEEDS, config)
    const { address } = ipv4For(NEEDS, own.subnet)
    const device = new IpipDevice(
      formatIpv4(ipv4For(NEEDS, external.address)),
      deviceState(run, NAME, mtu, address, network),
      run,
    )
    await device.open()
    const filter = new PeerFilter<Net>({ type: TYPE, lease: own, network, log })
    const parts = { network, device: NAME, probeSource: address, filter, directRouting, run, log }
    return new IpipPath({ family: 'ipv4', ...parts }, device)
  }
}

/** The data path: the next hop of each peer's subnet is the peer's host, through the device. */
class IpipPath extends RoutedPath {
  readonly #device: IpipDevice

  constructor(parts: RoutedParts, device: IpipDevice) {
    super(parts)
    this.#device = device
  }

  protected override repairDevice(): Promise<readonly string[]> {
    return this.#device.repair()
  }

  protected hopTo(peer: Lease): NextHop {
    return { gateway: this.hostOf(peer), device: NAME, onlink: true }
  }

  protected sideTo(peer: Lease): PathSide {
    return { endpoint: this.hostOf(peer), probe: this.sideOf(peer).subnet.address, way: 'kernel' }
  }
}

class IpipDevice {
  /** The outer source address of the device, as text. */
  readonly #local: string
  /** The device's MTU, address and link state. */
  readonly #state: DeviceState
  readonly #run: Run

  constructor(local: string, state: DeviceState, run: Run) {
    this.#local = local
    this.#state = state
    this.#run = run
  }

  /** Finds or creates the device and configures it. A new device that cannot be configured is deleted. */
  async open(): Promise<void> {
    const made = await this.#ensure()
    try {
      await this.#state.configure()
    } catch (error) {
      if (made.length > 0) await this.#run('ip', ['link', 'del', NAME]).catch(() => {})
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
    if (!(await findLink(this.#run, NAME))) {
      await this.#make()
      return [`${NAME} was gone`]
    }
    const [json] = await ipJson<JsonIpip>(this.#run, ['-d', 'link', 'show', 'dev', NAME])
    const { info_kind: kind = 'none', info_data: data = {} } = json?.linkinfo ?? {}
    if (kind !== TYPE)
      throw new WeftError('DEVICE', OTHER_TYPE, {
        remedy: `it is of type ${kind}: remove it with \`ip link del ${NAME}\``,
      })
    const { local: isLocal = 'any', remote: isRemote = 'any' } = data
    if (isLocal === this.#local && isRemote === 'any') return []
    await this.#run('ip', ['link', 'del', NAME])
    await this.#make()
    return [`${NAME} went from ${isLocal} to ${isRemote}`]
  }

  #make(): Promise<void> {
    return sayingWhoHasIt(this.#run, { name: NAME }, () => addDevice(this.#run, NAME, TYPE, [], ['local', this.#local]))
  }
}

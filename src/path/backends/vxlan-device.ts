// vxlan-device.ts - the kernel's vxlan device, configured as by flannel: its options, its address, and its entries for each peer.
//
// Each peer has a neighbour entry, which maps the first address of the peer's subnet to the peer's MAC, and a forwarding entry, which maps
// that MAC to the peer's host. Both are static, so the kernel sends no ARP requests and floods no packets (pkg/backend/vxlan/device.go).

import { randomBytes } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { runBatch } from '../../host/batch.ts'
import type { Run } from '../../host/command.ts'
import { addDevice, findLink, FollowedLink, ipFlag, ipJson, parseList } from '../../host/links.ts'
import { formatAddress, netsOf, type Address, type Net } from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import { deviceState, type DeviceState } from '../device/device-state.ts'
import { findEarlier, findRenamed } from '../device/flannel-devices.ts'

interface VxlanOptions {
  readonly name: string
  /** The network that contains the device's address. */
  readonly network: Net
  readonly vni: number
  readonly port: number
  readonly learning: boolean
  readonly gbp: boolean
  /**
   * The outer source address of datagrams; all peers are reached over its family. `underlay` names the external interface, which has this
   * address.
   */
  readonly local: Address
  readonly underlay: string
  /**
   * The kernel's index of the external interface to which the device is bound, by which a renamed interface is recognised; left out if it
   * is not known.
   */
  readonly underlayIndex?: number | undefined
  readonly mtu: number
}

export interface VxlanPeer {
  /** The first address of the peer's subnet, as text. */
  readonly address: string
  /** The peer's MAC in lower case, such as `02:11:22:33:44:55`. */
  readonly mac: string
  readonly host: string
}

interface VxlanDevice {
  /** The device, which another program may rename. */
  readonly link: FollowedLink
  /** Sets the device's address and MTU and brings the device up. Calling it again changes nothing. */
  configure(address: Address, network: Net): Promise<void>
  add(peers: readonly VxlanPeer[]): Promise<void>
  /** Sets the entries of these peers without reading the existing entries first. Resolves with true if the kernel accepted all of them. */
  put(peers: readonly VxlanPeer[]): Promise<boolean>
  /** Removes these entries from the device. Resolves with true if the device had all of them. */
  remove(gone: VxlanEntries): Promise<boolean>
  keepOnly(peers: readonly VxlanPeer[]): Promise<void>
  /** Repairs the device and the entries of these peers, and returns a description of each repair. */
  resync(peers: readonly VxlanPeer[]): Promise<readonly string[]>
}

export interface VxlanEntries {
  readonly addresses: ReadonlyMap<string, string>
  readonly macs: ReadonlyMap<string, string>
}

export const entriesOfPeers = (peers: Iterable<VxlanPeer>): VxlanEntries => {
  const [addresses, macs] = [new Map<string, string>(), new Map<string, string>()]
  for (const { address, mac, host } of peers) {
    addresses.set(address, mac)
    macs.set(mac, host)
  }
  return { addresses, macs }
}

/**
 * True if a line of `ip monitor neigh` reports an entry as it should be. Then this process made the change, or the change needs no repair.
 */
export function isAsWanted(line: string, { addresses, macs }: VxlanEntries): boolean {
  const [, deleted, name = '', mac = '', state = ''] =
    /^(Deleted )?(\S+) dev \S+ (?:lladdr (\S+) )?(.*)$/.exec(line.trimEnd()) ?? []
  const isForwarding = state.includes('NOARP')
  if (deleted !== undefined || !state.includes('PERMANENT'))
    return isForwarding ? macs.get(mac) !== name : !addresses.has(name)
  return isForwarding ? macs.get(mac) === name : addresses.get(name) === mac
}

interface JsonVxlan {
  address?: string
  linkinfo?: {
    info_kind?: string
    info_data?: {
      id?: number
      local?: string
      local6?: string
      link?: string
      port?: number
      learning?: boolean
      gbp?: boolean
    }
  }
}

interface JsonNeighbour {
  dst?: string
  lladdr?: string
}

interface JsonForwarding {
  mac?: string
  dst?: string
}

/** Returns a random MAC with the bits of a locally administered unicast address (IEEE 802, the two low bits of the first byte). */
export function randomMac(): string {
  const bytes = [...randomBytes(6)].map((byte, index) => (index === 0 ? (byte & 0xfc) | 0x02 : byte))
  return bytes.map((byte) => byte.toString(16).padStart(2, '0')).join(':')
}

/** Describes how the existing device differs from the options; undefined if it does not differ. */
function difference({ linkinfo }: JsonVxlan, options: VxlanOptions): string | undefined {
  if (linkinfo?.info_kind !== 'vxlan') return `it is a device of type ${linkinfo?.info_kind ?? 'none'}`
  const { id, local, local6, link, port, learning = true, gbp = false } = linkinfo.info_data ?? {}
  const pairs = [
    ['VNI', id, options.vni],
    ['local address', local ?? local6, formatAddress(options.local)],
    ['interface', link, options.underlay],
    ['port', port, options.port],
    ['learning', learning, options.learning],
    ['GBP', gbp, options.gbp],
  ] as const
  const other = pairs.find(([, is, wanted]) => is !== wanted)
  return other && `${other[0]}: ${String(other[1])} vs ${String(other[2])}`
}

async function show(run: Run, name: string): Promise<JsonVxlan | undefined> {
  return (await findLink(run, name)) ? describe(run, name) : undefined
}

const describe = async (run: Run, name: string): Promise<JsonVxlan | undefined> =>
  (await ipJson<JsonVxlan>(run, ['-d', 'link', 'show', 'dev', name]))[0]

/**
 * Returns the name of the kernel's vxlan device of an earlier run, which another program may have renamed since. If there is none, returns
 * the name that the device will have.
 */
export async function vxlanName(run: Run, name: string, network: Net): Promise<string> {
  if (await findLink(run, name)) return name
  return (await findRenamed(run, 'vxlan', netsOf([network]))) ?? name
}

/** Returns the MAC of the vxlan device called `name`; undefined if no vxlan device has that name. */
export async function vxlanMac(run: Run, name: string): Promise<string | undefined> {
  const found = await show(run, name)
  return found?.linkinfo?.info_kind === 'vxlan' ? found.address : undefined
}

/**
 * A device that `checkVxlan` creates and deletes. Its VNI is larger than the VNI of any flannel network, so that it conflicts with none.
 */
const PROBE = { name: 'flannel.probe', vni: 0xff_ffff }

/**
 * Checks that the kernel supports vxlan devices; existing devices do not change. Throws WeftError NO_DEVICE_TYPE if the kernel does not
 * support them.
 */
export async function checkVxlan(run: Run, name: string): Promise<void> {
  if ((await vxlanMac(run, name)) !== undefined) return
  try {
    await addDevice(run, PROBE.name, 'vxlan', [], ['id', String(PROBE.vni), 'dstport', '0'])
  } catch (error) {
    if (!isWeftError(error, 'COMMAND')) throw error // any other refusal shows that the kernel knows the type
  }
  if (await findLink(run, PROBE.name)) await run('ip', ['link', 'del', PROBE.name])
}

/** Finds or creates the device and sets its MAC. Throws WeftError DEVICE; NO_DEVICE_TYPE if the kernel does not support vxlan. */
export async function openVxlanDevice(options: VxlanOptions, mac: string, run: Run, log: Log): Promise<VxlanDevice> {
  const { mtu } = options
  const underlay = new FollowedLink(options.underlay, options.underlayIndex)
  const device = new FollowedLink(options.name)
  let state: DeviceState | undefined

  async function create(): Promise<void> {
    const { vni, port, learning, gbp, local } = options
    const link = ['id', String(vni), 'local', formatAddress(local), 'dev', underlay.name, 'dstport', String(port)]
    const flags = [learning ? 'learning' : 'nolearning', ...(gbp ? ['gbp'] : [])]
    try {
      await addDevice(run, device.name, 'vxlan', ['address', mac], [...link, ...flags])
    } catch (error) {
      if (!isWeftError(error, 'COMMAND')) throw error
      throw new WeftError('DEVICE', `failed to create the vxlan device ${device.name}: ${messageOf(error)}`, {
        remedy:
          'check whether another device has the same VNI (`ip -d link show type vxlan`); or set "DataPath": "userspace"',
        cause: error,
      })
    }
    await device.find(run)
    // The kernel must not accept IPv6 router advertisements that containers of other hosts send through the tunnel. The file is missing if
    // IPv6 is disabled.
    await writeFile(`/proc/sys/net/ipv6/conf/${device.name}/accept_ra`, '0').catch(() => {})
  }

  /**
   * Describes how the device differs from the options; undefined if it does not differ. If only the external interface was renamed, that is
   * not a difference.
   */
  async function differenceNow(found: JsonVxlan): Promise<string | undefined> {
    if (found.linkinfo?.info_data?.link !== underlay.name) await underlay.find(run)
    return difference(found, { ...options, underlay: underlay.name })
  }
  /**
   * Deletes the device so that it can be created again. If the external interface is missing, it throws and keeps the device, because the
   * new device could not be created.
   */
  async function removeForAnother(): Promise<void> {
    if (!(await underlay.find(run)))
      throw new WeftError('DEVICE', `cannot repair ${device.name}: the interface ${underlay.name} is gone`, {
        remedy: `restore ${underlay.name}, or restart weftd so that it chooses another interface`,
      })
    await run('ip', ['link', 'del', device.name])
    device.forget()
  }

  await findEarlier(device, run, 'vxlan', netsOf([options.network]), log)
  let found = device.index === undefined ? undefined : await describe(run, device.name)
  const other = found && (await differenceNow(found))
  if (other !== undefined) {
    log.warn(`"${device.name}" already exists with incompatible configuration: ${other}; recreating device`)
    await removeForAnother()
    found = undefined
  }
  const setMac = (): Promise<string> => run('ip', ['link', 'set', 'dev', device.name, 'address', mac])
  const isMade = !found
  if (!found) await create()
  else if (found.address !== mac) await setMac()

  async function configure(own: Address, network: Net): Promise<void> {
    state = withReasons(deviceState(run, device, mtu, own, network))
    try {
      await state.configure()
    } catch (error) {
      // A new device that cannot be brought up is deleted, because it would mislead an operator who searches for the cause.
      if (isMade) await run('ip', ['link', 'del', device.name]).catch(() => {})
      throw error
    }
  }
  const port = { number: options.port, option: KINDS.vxlan.options.port.name }
  const withReasons = (of: DeviceState): DeviceState => ({
    ...of,
    configure: () => sayingWhoHasIt(run, { name: device.name, port }, () => of.configure()),
  })

  const neighbours = async (): Promise<Map<string, string>> =>
    new Map(
      (
        await ipJson<JsonNeighbour>(run, [
          ipFlag(options.local),
          'neigh',
          'show',
          'dev',
          device.name,
          'nud',
          'permanent',
        ])
      ).map(({ dst = '', lladdr = '' }) => [dst, lladdr]),
    )
  /**
   * Returns the device's forwarding entries: the host for each MAC. The device has no entry for the MAC 00:00:00:00:00:00, because flannel
   * floods no packets.
   */
  const forwarding = async (): Promise<Map<string, string>> => {
    const text = await run('bridge', ['-j', 'fdb', 'show', 'dev', device.name])
    const entries = parseList<JsonForwarding>(text, `bridge -j fdb show dev ${device.name}`)
    return new Map(entries.flatMap(({ mac: to = '', dst }) => (dst === undefined ? [] : [[to, dst] as const])))
  }

  const forwardTo = (peers: readonly VxlanPeer[]): Promise<boolean> =>
    runBatch(
      run,
      'bridge',
      peers.map(({ mac: to, host }) => `fdb replace ${to} dev ${device.name} dst ${host} self permanent`),
    )
  const resolveTo = (peers: readonly VxlanPeer[]): Promise<boolean> =>
    runBatch(
      run,
      'ip',
      peers.map(({ address: of, mac: at }) => `neigh replace ${of} lladdr ${at} dev ${device.name} nud permanent`),
    )

  /** Adds the entries that the device lacks for these peers, and returns the number of added entries. */
  async function putMissing(peers: readonly VxlanPeer[]): Promise<number> {
    const [known, behind] = [await neighbours(), await forwarding()]
    const forward = peers.filter(({ mac: to, host }) => behind.get(to) !== host)
    const resolve = peers.filter(({ address: of, mac: at }) => known.get(of) !== at)
    await forwardTo(forward)
    await resolveTo(resolve)
    return forward.length + resolve.length
  }

  async function remove({ addresses, macs }: VxlanEntries): Promise<boolean> {
    const hadNeighbours = await runBatch(
      run,
      'ip',
      [...addresses.keys()].map((of) => `neigh del ${of} dev ${device.name}`),
    )
    const hadForwarding = await runBatch(
      run,
      'bridge',
      [...macs].map(([of, dst]) => `fdb del ${of} dev ${device.name} dst ${dst} self`),
    )
    return hadNeighbours && hadForwarding
  }

  async function keepOnly(peers: readonly VxlanPeer[]): Promise<void> {
    const wanted = entriesOfPeers(peers)
    const [known, behind] = [await neighbours(), await forwarding()]
    await remove({
      addresses: new Map([...known].filter(([of]) => !wanted.addresses.has(of))),
      macs: new Map([...behind].filter(([of]) => !wanted.macs.has(of))),
    })
  }

  return {
    link: device,
    configure,
    add: async (peers) => void (await putMissing(peers)),
    async put(peers) {
      const isForwarded = await forwardTo(peers)
      return (await resolveTo(peers)) && isForwarded
    },
    remove,
    keepOnly,
    async resync(peers) {
      const wrong: string[] = []
      const now = (await device.follow(run, log)) && (await describe(run, device.name))
      const change = now && (await differenceNow(now))
      if (!now || change !== undefined) {
        wrong.push(now ? `${device.name} was another device (${change})` : `${device.name} was gone`)
        if (now) await removeForAnother()
        await create()
      }
      if (wrong.length === 0 && now?.address !== mac) {
        await setMac()
        wrong.push(`${device.name} had the MAC ${now?.address}`)
      }
      if (wrong.length === 0 && state) wrong.push(...(await state.wrong()))
      if (wrong.length > 0) await state?.configure()
      const missing = await putMissing(peers)
      if (wrong.length === 0 && missing > 0) wrong.push(`${missing} entries of ${device.name} for peers were gone`)
      return wrong
    },
  }
}

// vxlan-device.ts - the kernel's vxlan device, as flannel makes it: its options, its address, and its entries for each peer.
//
// A peer is a neighbour (the first address of its subnet, at its MAC) and a forwarding entry (that MAC, behind its host).
// Both are static: nobody is asked by ARP, and nothing is flooded (pkg/backend/vxlan/device.go).

import { randomBytes } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { runBatch } from '../../host/batch.ts'
import type { Run } from '../../host/command.ts'
import { addDevice, findLink, findLinkAgain, ipFlag, ipJson, parseList } from '../../host/links.ts'
import { formatAddress, type Address, type Net } from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import { deviceState, type DeviceState } from '../device/device-state.ts'

interface VxlanOptions {
  readonly name: string
  readonly vni: number
  /** UDP, of both ends. */
  readonly port: number
  readonly learning: boolean
  readonly gbp: boolean
  /** Outer source address, whose family is that of all its peers, and the interface that it is on. */
  readonly local: Address
  readonly underlay: string
  /** The kernel's index of that interface, to which the device is bound; left out if it is not known. */
  readonly underlayIndex?: number | undefined
  /** The MTU of the device, in bytes. */
  readonly mtu: number
}

/** The device's facts about a peer. */
export interface VxlanPeer {
  /** The first address of its subnet. */
  readonly address: string
  /** `02:11:22:33:44:55`, lower case. */
  readonly mac: string
  /** Its host's address. */
  readonly host: string
}

interface VxlanDevice {
  /** Sets its address and size and takes it up; said as a whole, so that saying it again changes nothing. */
  configure(address: Address, network: Net): Promise<void>
  /** Puts in the entries of peers that are new or changed. */
  add(peers: readonly VxlanPeer[]): Promise<void>
  /** Puts in the entries of these peers without a look at what is there; resolves with whether the kernel took them all. */
  put(peers: readonly VxlanPeer[]): Promise<boolean>
  /** Takes out the entries by these addresses, and by these MACs; resolves with whether the kernel had them all. */
  remove(gone: VxlanEntries): Promise<boolean>
  /** Takes out all entries that are of none of them. */
  keepOnly(peers: readonly VxlanPeer[]): Promise<void>
  /** Makes device and entries right again; says what had to be mended. */
  resync(peers: readonly VxlanPeer[]): Promise<readonly string[]>
}

/** The entries of peers. */
export interface VxlanEntries {
  /** The MAC of each address. */
  readonly addresses: ReadonlyMap<string, string>
  /** The host behind each MAC. */
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

/** Whether a line of `ip monitor neigh` says of one of the device's entries just what is wanted: as after a change of our own. */
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

/** Random, local, of one host (IEEE 802, the two low bits of the first byte). */
export function randomMac(): string {
  const bytes = [...randomBytes(6)].map((byte, index) => (index === 0 ? (byte & 0xfc) | 0x02 : byte))
  return bytes.map((byte) => byte.toString(16).padStart(2, '0')).join(':')
}

/** The difference between an existing device and the one that is wanted; undefined when there is none. */
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
  if (!(await findLink(run, name))) return undefined
  return (await ipJson<JsonVxlan>(run, ['-d', 'link', 'show', 'dev', name]))[0]
}

/** The MAC of the vxlan device of this name; undefined when there is none. */
export async function vxlanMac(run: Run, name: string): Promise<string | undefined> {
  const found = await show(run, name)
  return found?.linkinfo?.info_kind === 'vxlan' ? found.address : undefined
}

/** A device that is there for a moment, with a VNI that no network of flannel's can have. */
const PROBE = { name: 'flannel.probe', vni: 0xff_ffff }

/** Makes sure that the kernel has devices of this type; no device changes. Throws WeftError NO_DEVICE_TYPE where it has none. */
export async function checkVxlan(run: Run, name: string): Promise<void> {
  if ((await vxlanMac(run, name)) !== undefined) return
  try {
    await addDevice(run, PROBE.name, 'vxlan', [], ['id', String(PROBE.vni), 'dstport', '0'])
  } catch (error) {
    if (!isWeftError(error, 'COMMAND')) throw error // any other refusal is one of a kernel that knows the type
  }
  if (await findLink(run, PROBE.name)) await run('ip', ['link', 'del', PROBE.name])
}

/** Finds the device, or makes it, and sees to its MAC. Throws WeftError DEVICE, and NO_DEVICE_TYPE where the kernel has no vxlan. */
export async function openVxlanDevice(options: VxlanOptions, mac: string, run: Run, log: Log): Promise<VxlanDevice> {
  const { name, mtu } = options
  let { underlay } = options
  let state: DeviceState | undefined

  async function create(): Promise<void> {
    const { vni, port, learning, gbp, local } = options
    const link = ['id', String(vni), 'local', formatAddress(local), 'dev', underlay, 'dstport', String(port)]
    const flags = [learning ? 'learning' : 'nolearning', ...(gbp ? ['gbp'] : [])]
    try {
      await addDevice(run, name, 'vxlan', ['address', mac], [...link, ...flags])
    } catch (error) {
      if (!isWeftError(error, 'COMMAND')) throw error
      throw new WeftError('DEVICE', `failed to create the vxlan device ${name}: ${messageOf(error)}`, {
        remedy: 'see whether another device has its VNI (`ip -d link show type vxlan`); or set "DataPath": "userspace"',
        cause: error,
      })
    }
    // Router advertisements of another host's containers are none of ours. Not there where IPv6 is off.
    await writeFile(`/proc/sys/net/ipv6/conf/${name}/accept_ra`, '0').catch(() => {})
  }

  /** Describes how a device differs from the wanted one; undefined if it does not. A new name of the underlay is no difference. */
  async function differenceNow(device: JsonVxlan): Promise<string | undefined> {
    const { link } = device.linkinfo?.info_data ?? {}
    if (link !== undefined && link !== underlay && options.underlayIndex !== undefined) {
      const is = await findLink(run, link)
      if (is?.index === options.underlayIndex) underlay = link
    }
    return difference(device, { ...options, underlay })
  }
  /** Deletes the device to make another one. First checks that making it is possible, since a working device is better than none. */
  async function removeForAnother(): Promise<void> {
    const under = await findLinkAgain(run, underlay, options.underlayIndex)
    if (!under)
      throw new WeftError(
        'DEVICE',
        `${name} is not as it should be, and is left so: the interface ${underlay} is gone`,
        {
          remedy: `bring ${underlay} back, or restart weftd to have it choose another interface`,
        },
      )
    underlay = under.name
    await run('ip', ['link', 'del', name])
  }

  let found = await show(run, name)
  const other = found && (await differenceNow(found))
  if (other !== undefined) {
    log.warn(`"${name}" already exists with incompatible configuration: ${other}; recreating device`)
    await removeForAnother()
    found = undefined
  }
  const setMac = (): Promise<string> => run('ip', ['link', 'set', 'dev', name, 'address', mac])
  const isMade = !found
  if (!found) await create()
  else if (found.address !== mac) await setMac()

  async function configure(own: Address, network: Net): Promise<void> {
    state = withReasons(deviceState(run, name, mtu, own, network))
    try {
      await state.configure()
    } catch (error) {
      // Delete a device that cannot be brought up, because it would hinder the search for the cause.
      if (isMade) await run('ip', ['link', 'del', name]).catch(() => {})
      throw error
    }
  }
  const port = { number: options.port, option: KINDS.vxlan.options.port.name }
  const withReasons = (of: DeviceState): DeviceState => ({
    ...of,
    configure: () => sayingWhoHasIt(run, { name, port }, () => of.configure()),
  })

  const neighbours = async (): Promise<Map<string, string>> =>
    new Map(
      (await ipJson<JsonNeighbour>(run, [ipFlag(options.local), 'neigh', 'show', 'dev', name, 'nud', 'permanent'])).map(
        ({ dst = '', lladdr = '' }) => [dst, lladdr],
      ),
    )
  /** The entry for all other addresses, of all zeroes, is not there: nothing is flooded. */
  const forwarding = async (): Promise<Map<string, string>> => {
    const text = await run('bridge', ['-j', 'fdb', 'show', 'dev', name])
    const entries = parseList<JsonForwarding>(text, `bridge -j fdb show dev ${name}`)
    return new Map(entries.flatMap(({ mac: to = '', dst }) => (dst === undefined ? [] : [[to, dst] as const])))
  }

  const forwardTo = (peers: readonly VxlanPeer[]): Promise<boolean> =>
    runBatch(
      run,
      'bridge',
      peers.map(({ mac: to, host }) => `fdb replace ${to} dev ${name} dst ${host} self permanent`),
    )
  const resolveTo = (peers: readonly VxlanPeer[]): Promise<boolean> =>
    runBatch(
      run,
      'ip',
      peers.map(({ address: of, mac: at }) => `neigh replace ${of} lladdr ${at} dev ${name} nud permanent`),
    )

  /** Puts in what is missing of them; returns how many entries that were. */
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
      [...addresses.keys()].map((of) => `neigh del ${of} dev ${name}`),
    )
    const hadForwarding = await runBatch(
      run,
      'bridge',
      [...macs].map(([of, dst]) => `fdb del ${of} dev ${name} dst ${dst} self`),
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
      const now = await show(run, name)
      const change = now && (await differenceNow(now))
      if (!now || change !== undefined) {
        if (now) await removeForAnother()
        await create()
        wrong.push(now ? `${name} was another device (${change})` : `${name} was gone`)
      }
      if (wrong.length === 0 && now?.address !== mac) {
        await setMac()
        wrong.push(`${name} had the MAC ${now?.address}`)
      }
      if (wrong.length === 0 && state) wrong.push(...(await state.wrong()))
      if (wrong.length > 0) await state?.configure()
      const missing = await putMissing(peers)
      if (wrong.length === 0 && missing > 0) wrong.push(`${missing} entries of ${name} for peers were gone`)
      return wrong
    },
  }
}

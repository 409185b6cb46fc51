// model-kernel.ts - a small model of the kernel's network configuration, for unit tests and simulations.
//
// The model refuses a change with the same error number as the kernel, and removes what the kernel removes: a device
// that is deleted or set down loses its routes and neighbour entries. model-routes.ts has the routing tables,
// model-wireguard.ts the WireGuard devices.

import { WeftError } from '../../src/base/errors.ts'
import { wordsOf } from '../../src/host/ip-words.ts'
import type {
  Change,
  Device,
  Forwarding,
  HostKernel,
  IpsecSetup,
  KernelEvent,
  Link,
  LinkAddress,
  Neighbour,
  NewDevice,
  NftTable,
  OnKernelEvent,
  PolicyRule,
  Route,
  RouteAnswer,
  RouteFilter,
  RouteQuery,
  Topic,
  WireguardState,
} from '../../src/host/kernel.ts'
import { FAMILIES, familyOf, formatAddress, formatNet, hostNet, netAround, type Family } from '../../src/net/address.ts'
import { Refused } from './model-refusal.ts'
import { LOCAL, MAIN, ModelRoutes, type RouteDevice } from './model-routes.ts'
import { ModelWireguard } from './model-wireguard.ts'

type OfKind<K extends Change['kind']> = Extract<Change, { readonly kind: K }>
type Mutable<T> = { -readonly [K in keyof T]: T[K] }

/** A device with all objects that the kernel deletes together with it. */
interface ModelLink {
  settings: Mutable<Omit<Link, 'addresses'>>
  addresses: LinkAddress[]
  /** The neighbour entries by address as text. */
  neighbours: Map<string, Neighbour>
  /** The forwarding entries of a vxlan device by MAC. */
  forwarding: Map<string, Forwarding>
  wireguard: ModelWireguard | undefined
}

const TOPIC_OF: Readonly<Record<Exclude<KernelEvent['of'], 'anything'>, Topic>> = {
  link: 'links',
  address: 'addresses',
  route: 'routes',
  rule: 'rules',
  neighbour: 'neighbours',
  forwarding: 'neighbours',
  'ipsec policies': 'ipsec policies',
}

const DEFAULTS: Omit<Link, 'index' | 'name' | 'addresses'> = {
  mtu: 1500,
  up: true,
  hasCarrier: true,
  loopback: false,
  queueLength: 1000,
  queueDiscipline: 'noqueue',
  isEthernet: true,
  mac: '',
  type: '',
  master: 0,
}

/** The part of an address that a test gives; the other members are false. */
type GivenAddress = Pick<LinkAddress, 'address' | 'prefixLength'> & Partial<LinkAddress>

export class ModelKernel implements HostKernel {
  /** The words of the changes that the code under test asked for, refused changes included. */
  readonly changes: string[] = []
  /** The names of the functions that the code under test called to read the configuration. */
  readonly reads: string[] = []
  /** The number of calls of `change`. */
  changeCalls = 0
  /** Returns the error number with which the kernel refuses a change, by the change and its words. A test replaces it. */
  refuses: (words: string, change: Change) => string | undefined = () => undefined
  /** The error of all functions that read the configuration; undefined if they succeed. */
  readError: Error | undefined
  /** False for a process without CAP_NET_ADMIN, whose changes the kernel refuses with EPERM. */
  isPermitted = true
  /** The types of devices that this kernel does not support. */
  readonly unknownTypes = new Set<string>()
  /** The UDP ports that programs have open. */
  readonly usedPorts = new Set<number>()
  /** The families that this kernel has. */
  families: readonly Family[] = FAMILIES
  hasPolicyRouting = true
  /** The tables of legacy iptables; undefined if the kernel does not list them. */
  legacy: readonly string[] | undefined
  /** The tables of nftables; undefined if the kernel does not list them. */
  nft: readonly NftTable[] | undefined
  /** The generation of nftables' rules; undefined if the kernel refuses the request. */
  generation: number | undefined
  hasPolicies = false
  /** The number of outgoing packets that each interface has dropped. */
  dropped = 0
  readonly #links = new Map<number, ModelLink>()
  readonly #routes: Readonly<Record<Family, ModelRoutes>>
  readonly #watchers = new Set<{ readonly topics: readonly Topic[]; readonly onEvent: OnKernelEvent }>()
  /** The change that the code under test asked for and that the model makes now. */
  #requested: Change | undefined
  #lastIndex = 0

  constructor() {
    this.#routes = { ipv4: this.#newRoutes('ipv4'), ipv6: this.#newRoutes('ipv6') }
  }

  // The functions that a test calls to prepare the host, or to act as another program. `changes` does not record them.

  /** Adds an interface that is up, with these settings and addresses. Without `index` it gets the next free index. */
  addLink(
    { name, index, ...settings }: Partial<Omit<Link, 'addresses'>> & { readonly name: string },
    addresses: readonly GivenAddress[] = [],
  ): number {
    const link = this.#newLink(name, settings, index)
    for (const each of addresses) this.addAddress(name, each)
    return link.settings.index
  }

  addAddress(name: string, given: GivenAddress): void {
    const link = this.#byName(name)
    const address = {
      dynamic: false,
      deprecated: false,
      secondary: false,
      temporary: false,
      tentative: false,
      ...given,
    }
    link.addresses = [...link.addresses.filter(({ address: other }) => other !== address.address), address]
    this.#reportAddress(link, address, false)
    if (link.settings.up) this.#addRoutesOf(link, address)
  }

  /** Makes a change as another program does. Throws `Refused` if the kernel refuses the change. */
  act(...changes: readonly Change[]): void {
    for (const change of changes) this.#make(change)
  }

  rename(name: string, to: string): void {
    const link = this.#byName(name)
    link.settings.name = to
    this.#reportLink(link, false)
  }

  /** Changes settings of an interface that no change of weftd can change, such as the carrier or the master. */
  alter(name: string, settings: Partial<Omit<Link, 'addresses'>>): void {
    const link = this.#byName(name)
    Object.assign(link.settings, settings)
    this.#reportLink(link, false)
  }

  /** Adds a route without the kernel's checks. */
  addRoute(family: Family, route: Pick<Route, 'destination'> & Partial<Route>): void {
    const { device = '', deviceIndex = device === '' ? 0 : this.#byName(device).settings.index } = route
    this.#routes[family].put({
      type: 'unicast',
      protocol: 'boot',
      gateway: undefined,
      metric: family === 'ipv4' ? 0 : 1024,
      source: undefined,
      table: MAIN,
      isOnlink: false,
      ...route,
      device: '',
      deviceIndex,
    })
  }

  addRule(family: Family, rule: Partial<PolicyRule> & Pick<PolicyRule, 'priority'>): void {
    const { rules } = this.#routes[family]
    rules.push({
      table: undefined,
      action: rule.table === undefined ? 'unreachable' : 'lookup',
      iif: undefined,
      oif: undefined,
      from: undefined,
      to: undefined,
      mark: undefined,
      mask: 0xffff_ffff,
      isInverted: false,
      ...rule,
    })
    rules.sort((a, b) => a.priority - b.priority)
    this.#emit({ of: 'rule', family, gone: false })
  }

  /** Returns the WireGuard device, whose peers a test may change. */
  wireguardDevice(name: string): ModelWireguard {
    return this.#wireguardOf({ name })
  }

  /** Reports to all watchers that reports were lost. */
  loseReports(): void {
    this.#emit({ of: 'anything' })
  }

  /** The routes of a table as text, such as `10.5.2.0/24 via 10.5.2.0 dev flannel.1`, without the kernel's own routes. */
  routesAsText(family: Family = 'ipv4', table = MAIN): string[] {
    return this.#routes[family]
      .list({ family, table })
      .filter(({ protocol }) => protocol !== 'kernel')
      .map(({ type, destination, gateway, device, metric }) =>
        [
          ...(type === 'unicast' ? [] : [type]),
          destination,
          ...(gateway === undefined ? [] : ['via', gateway]),
          ...(device === '' ? [] : ['dev', device]),
          ...(metric === (family === 'ipv4' ? 0 : 1024) ? [] : ['metric', metric]),
        ].join(' '),
      )
  }

  /** The interface called `name`, with its addresses; undefined if there is none. */
  peek(name: string): Link | undefined {
    const link = [...this.#links.values()].find(({ settings }) => settings.name === name)
    return link && this.#snapshot(link)
  }

  // The functions of HostKernel, which the code under test calls.

  async links(): Promise<readonly Link[]> {
    this.#read('links')
    return [...this.#links.values()].map((link) => this.#snapshot(link))
  }

  async link(which: string | number): Promise<Link | undefined> {
    this.#read('link')
    if (typeof which === 'string') return this.peek(which)
    const link = this.#links.get(which)
    return link && this.#snapshot(link)
  }

  async sendDrops(which: string | number): Promise<number | undefined> {
    this.#read('sendDrops')
    const link = typeof which === 'string' ? this.peek(which) : this.#links.get(which)
    return link && this.dropped
  }

  async routes(which: RouteFilter): Promise<readonly Route[]> {
    this.#read('routes')
    return this.#routes[which.family].list(which)
  }

  async lookUp(family: Family, queries: readonly RouteQuery[]): Promise<readonly RouteAnswer[]> {
    this.#read('lookUp')
    return queries.map((query) => this.#routes[family].lookUp(query))
  }

  async rules(family: Family): Promise<readonly PolicyRule[] | undefined> {
    this.#read('rules')
    if (!this.hasPolicyRouting || !this.families.includes(family)) return undefined
    return [...this.#routes[family].rules]
  }

  async neighbours(family: Family, device?: Device): Promise<readonly Neighbour[]> {
    this.#read('neighbours')
    const links = device ? [this.#linkOf(device)] : [...this.#links.values()]
    const all = links.flatMap((link) => [...(link?.neighbours.values() ?? [])])
    return all.filter(({ address }) => familyOf(address) === family)
  }

  async forwarding(device: Device): Promise<readonly Forwarding[]> {
    this.#read('forwarding')
    return [...(this.#linkOf(device)?.forwarding.values() ?? [])]
  }

  async wireguard(device: Device): Promise<WireguardState> {
    this.#read('wireguard')
    try {
      if (!this.isPermitted) throw new Refused('EPERM')
      return this.#wireguardOf(device).state()
    } catch (error) {
      throw error instanceof Refused ? errorOf(`list the WireGuard device ${device.name}`, error) : error
    }
  }

  async nftTables(): Promise<readonly NftTable[] | undefined> {
    this.#read('nftTables')
    return this.nft
  }

  async nftGeneration(): Promise<number | undefined> {
    this.#read('nftGeneration')
    return this.generation
  }

  async legacyTables(): Promise<readonly string[] | undefined> {
    this.#read('legacyTables')
    return this.legacy
  }

  async hasIpsecPolicies(): Promise<boolean> {
    this.#read('hasIpsecPolicies')
    return this.hasPolicies
  }

  async ipsec(): Promise<IpsecSetup> {
    this.#read('ipsec')
    return { policies: [], states: [], blockedByDefault: [] }
  }

  async change(changes: readonly Change[]): Promise<readonly (WeftError | undefined)[]> {
    this.changeCalls += 1
    return changes.map((change) => {
      const words = wordsOf(change)
      this.changes.push(words)
      try {
        if (!this.isPermitted) throw new Refused('EPERM')
        const errno = this.refuses(words, change)
        if (errno !== undefined) throw new Refused(errno)
        this.#requested = change
        this.#make(change)
        return undefined
      } catch (error) {
        if (error instanceof Refused) return changeErrorOf(change, error)
        throw error
      } finally {
        this.#requested = undefined
      }
    })
  }

  async watch(topics: readonly Topic[], onEvent: OnKernelEvent, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return
    const watcher = { topics, onEvent }
    this.#watchers.add(watcher)
    signal.addEventListener('abort', () => this.#watchers.delete(watcher), { once: true })
  }

  #make(change: Change): void {
    switch (change.kind) {
      case 'add link':
        return this.#addLink(change.link)
      case 'set link':
        return this.#setLink(change)
      case 'delete link':
        return this.#deleteLink(this.#find(change.device))
      case 'replace address':
      case 'delete address':
        return this.#changeAddress(change)
      case 'add route':
        return this.#routesFor(familyOf(change.destination)).add(change)
      case 'replace route':
        return this.#routesFor(familyOf(change.destination)).replace(change)
      case 'delete route':
        return this.#routesFor(familyOf(change.destination)).delete(change)
      case 'add rule':
      case 'delete rule':
        if (!this.hasPolicyRouting) throw new Refused('EOPNOTSUPP')
        this.#routesFor(change.family).changeRule(change)
        return this.#emit({ of: 'rule', family: change.family, gone: change.kind === 'delete rule' })
      case 'replace neighbour':
      case 'delete neighbour':
        return this.#changeNeighbour(change)
      case 'replace forwarding':
      case 'delete forwarding':
        return this.#changeForwarding(change)
      case 'set wireguard':
        return this.#wireguardOf(change.device, 'EOPNOTSUPP').set(change)
    }
  }

  #addLink({ name, type, mac, mtu, vxlan, ipip, peer }: NewDevice): void {
    for (const each of [name, ...(peer ? [peer.name] : [])]) checkName(each)
    if (this.unknownTypes.has(type)) throw new Refused('EOPNOTSUPP', 'Unknown device type')
    if (this.peek(name) || (peer && this.peek(peer.name))) throw new Refused('EEXIST')
    const settings: Partial<Mutable<Link>> = { type, up: false, hasCarrier: false, mac: mac ?? '02:00:00:00:00:01' }
    if (mtu !== undefined) settings.mtu = mtu
    if (vxlan) {
      const underlay = vxlan.underlay ? this.#find(vxlan.underlay).settings : undefined
      settings.mtu ??= underlay ? underlay.mtu - (typeof vxlan.local === 'bigint' ? 70 : 50) : 1500
      settings.vxlan = {
        vni: vxlan.vni,
        local: vxlan.local,
        underlay: underlay?.index ?? 0,
        port: vxlan.port,
        learning: vxlan.learning ?? true,
        gbp: vxlan.gbp ?? false,
        external: false,
        zeroChecksumIpv6Rx: false,
      }
      if (this.#all().some((other) => isSameVxlan(other, settings)))
        throw new Refused('EEXIST', 'A VXLAN device with the specified VNI already exists')
    }
    if (ipip) {
      settings.ipip = { local: ipip.local, remote: undefined, external: false, alwaysDf: false }
      const isTaken = this.#all().some((other) => other.ipip && !other.ipip.external && other.ipip.local === ipip.local)
      if (isTaken) throw new Refused('EEXIST')
    }
    if (type === 'wireguard' || type === 'ipip') Object.assign(settings, { isEthernet: false, mac: '' })
    const link = this.#newLink(name, settings)
    if (type === 'wireguard') link.wireguard = new ModelWireguard()
    if (peer) this.#newLink(peer.name, { type, up: false, hasCarrier: false, mtu: peer.mtu ?? mtu ?? 1500 })
  }

  #setLink({ device, mtu, up, mac, queueLength, ipip }: OfKind<'set link'>): void {
    const link = this.#find(device)
    const { settings } = link
    if (mac !== undefined && mac !== settings.mac) {
      settings.mac = mac
      this.#deleteNeighbours(link)
    }
    settings.mtu = mtu ?? settings.mtu
    settings.queueLength = queueLength ?? settings.queueLength
    if (ipip) settings.ipip = { local: ipip.local, remote: undefined, external: false, alwaysDf: false }
    if (up && !settings.up) this.#takeUp(link)
    if (up === false && settings.up) this.#takeDown(link)
    this.#reportLink(link, false)
  }

  #takeUp(link: ModelLink): void {
    const { vxlan } = link.settings
    const port = vxlan?.port ?? (link.wireguard?.port || undefined)
    const holdsPort = ({ up, vxlan: other }: Link): boolean =>
      up && vxlan !== undefined && other?.port === port && other?.gbp !== vxlan.gbp
    if (port !== undefined && (this.usedPorts.has(port) || this.#all().some(holdsPort))) throw new Refused('EADDRINUSE')
    link.settings.up = true
    link.settings.hasCarrier = true
    for (const address of link.addresses) this.#addRoutesOf(link, address)
  }

  /** Sets an interface down: it loses its routes, its neighbour entries and its IPv6 addresses. */
  #takeDown(link: ModelLink): void {
    link.settings.up = false
    link.settings.hasCarrier = false
    for (const address of link.addresses.filter((each) => typeof each.address === 'bigint'))
      this.#removeAddress(link, address)
    this.#deleteNeighbours(link)
    for (const family of FAMILIES) this.#routes[family].deleteThrough(link.settings.index)
  }

  #deleteLink(link: ModelLink): void {
    this.#takeDown(link)
    for (const address of link.addresses) this.#removeAddress(link, address)
    for (const forwarding of link.forwarding.values()) this.#emit({ of: 'forwarding', forwarding, gone: true })
    this.#links.delete(link.settings.index)
    this.#reportLink(link, true)
  }

  #changeAddress({ kind, device, address, prefixLength }: OfKind<'replace address' | 'delete address'>): void {
    const link = this.#find(device)
    if (!this.families.includes(familyOf(address))) throw new Refused('EOPNOTSUPP')
    const old = link.addresses.find((each) => each.address === address && each.prefixLength === prefixLength)
    if (kind === 'replace address') {
      if (!old) this.addAddress(link.settings.name, { address, prefixLength })
      return
    }
    if (!old) throw new Refused('EADDRNOTAVAIL')
    this.#removeAddress(link, old)
  }

  #removeAddress(link: ModelLink, gone: LinkAddress): void {
    link.addresses = link.addresses.filter((each) => each !== gone)
    const { index } = link.settings
    const host = formatNet(hostNet(gone.address))
    const net = formatNet(netAround(gone.address, gone.prefixLength))
    const family = familyOf(gone.address)
    this.#routes[family].deleteAll(
      ({ deviceIndex, destination, table, protocol, source }) =>
        deviceIndex === index &&
        (protocol === 'kernel'
          ? destination === (table === LOCAL ? host : net)
          : family === 'ipv4' && source === gone.address),
    )
    const isLast = family === 'ipv4' && !link.addresses.some(({ address }) => typeof address === 'number')
    if (isLast) this.#routes.ipv4.deleteThrough(index)
    this.#reportAddress(link, gone, true)
  }

  /** Adds the routes that the kernel makes for an address: to the address itself, and to the network on the link. */
  #addRoutesOf(link: ModelLink, { address, prefixLength }: LinkAddress): void {
    const family = familyOf(address)
    const routes = this.#routes[family]
    const { index } = link.settings
    const made = { device: '', deviceIndex: index, protocol: 'kernel', gateway: undefined, isOnlink: false }
    const local = formatNet(hostNet(address))
    const source = family === 'ipv4' ? address : undefined
    routes.put({ ...made, destination: local, type: 'local', metric: 0, source, table: LOCAL })
    const net = formatNet(netAround(address, prefixLength))
    if (family === 'ipv4' && prefixLength === 32) return
    routes.put({ ...made, destination: net, type: 'unicast', metric: family === 'ipv4' ? 0 : 256, source, table: MAIN })
  }

  #changeNeighbour(change: OfKind<'replace neighbour' | 'delete neighbour'>): void {
    const { device, address } = change
    const { settings, neighbours } = this.#find(device)
    const key = formatAddress(address)
    const old = neighbours.get(key)
    if (change.kind === 'replace neighbour') {
      const entry = { deviceIndex: settings.index, address, mac: change.mac, states: ['PERMANENT'] }
      neighbours.set(key, entry)
      return this.#emit({ of: 'neighbour', neighbour: entry, gone: false })
    }
    if (!old) throw new Refused('ENOENT')
    neighbours.delete(key)
    this.#emit({ of: 'neighbour', neighbour: old, gone: true })
  }

  #deleteNeighbours(link: ModelLink): void {
    const gone = [...link.neighbours.values()]
    link.neighbours.clear()
    for (const neighbour of gone) this.#emit({ of: 'neighbour', neighbour, gone: true })
  }

  #changeForwarding({ kind, device, mac, host }: OfKind<'replace forwarding' | 'delete forwarding'>): void {
    const { settings, forwarding } = this.#find(device)
    if (settings.type !== 'vxlan') throw new Refused('EOPNOTSUPP')
    const old = forwarding.get(mac)
    if (kind === 'replace forwarding') {
      const entry = { deviceIndex: settings.index, mac, host, isPermanent: true }
      forwarding.set(mac, entry)
      return this.#emit({ of: 'forwarding', forwarding: entry, gone: false })
    }
    if (old?.host !== host) throw new Refused('ENOENT')
    forwarding.delete(mac)
    this.#emit({ of: 'forwarding', forwarding: old, gone: true })
  }

  #newLink(name: string, settings: Partial<Omit<Link, 'addresses'>>, index = this.#lastIndex + 1): ModelLink {
    this.#lastIndex = Math.max(this.#lastIndex, index)
    const link: ModelLink = {
      settings: { ...DEFAULTS, ...settings, name, index },
      addresses: [],
      neighbours: new Map(),
      forwarding: new Map(),
      wireguard: settings.type === 'wireguard' ? new ModelWireguard() : undefined,
    }
    this.#links.set(index, link)
    this.#reportLink(link, false)
    return link
  }

  #newRoutes(family: Family): ModelRoutes {
    const device = (which: { name: string; index?: number | undefined }): RouteDevice | undefined => {
      const link = this.#linkOf(which)
      if (!link) return undefined
      const addresses = link.addresses.map(({ address }) => address).filter((each) => familyOf(each) === family)
      const { index, name, up } = link.settings
      return { index, name, up, addresses }
    }
    return new ModelRoutes(family, device, (route, gone) => this.#emit({ of: 'route', route, family, gone }))
  }

  #routesFor(family: Family): ModelRoutes {
    if (!this.families.includes(family)) throw new Refused('EAFNOSUPPORT')
    return this.#routes[family]
  }

  #wireguardOf(device: Device, errno = 'EOPNOTSUPP'): ModelWireguard {
    const { wireguard } = this.#find(device)
    if (!wireguard) throw new Refused(errno)
    return wireguard
  }

  #linkOf({ name, index }: { name: string; index?: number | undefined }): ModelLink | undefined {
    if (index !== undefined) return this.#links.get(index)
    return [...this.#links.values()].find(({ settings }) => settings.name === name)
  }

  #find(device: Device): ModelLink {
    const link = this.#linkOf(device)
    if (!link) throw new Refused('ENODEV')
    return link
  }

  #byName(name: string): ModelLink {
    const link = this.#linkOf({ name })
    if (!link) throw new Error(`the model kernel has no interface ${name}`)
    return link
  }

  #all(): Link[] {
    return [...this.#links.values()].map((link) => this.#snapshot(link))
  }

  #snapshot({ settings, addresses }: ModelLink): Link {
    const all = addresses as Link['addresses'][Family][number][]
    return {
      ...settings,
      addresses: {
        ipv4: all.filter((each): each is Link['addresses']['ipv4'][number] => typeof each.address === 'number'),
        ipv6: all.filter((each): each is Link['addresses']['ipv6'][number] => typeof each.address === 'bigint'),
      },
    }
  }

  #read(what: string): void {
    this.reads.push(what)
    if (this.readError) throw this.readError
  }

  #reportLink(link: ModelLink, gone: boolean): void {
    this.#emit({ of: 'link', link: this.#snapshot(link), gone })
  }

  #reportAddress(link: ModelLink, about: LinkAddress, gone: boolean): void {
    const { address, prefixLength } = about
    const text = `${formatAddress(address)}/${prefixLength}${about.deprecated ? ' deprecated' : ''}`
    this.#emit({ of: 'address', deviceIndex: link.settings.index, address, prefixLength, text, gone })
  }

  /** Reports an event to the watchers of its topic after the current change, as the kernel does. */
  #emit(event: KernelEvent): void {
    // The kernel names the requesting process for the changed object itself, but not for changes that follow from the
    // change, nor for forwarding entries and IPv6 addresses.
    const isUnnamed = event.of === 'forwarding' || (event.of === 'address' && familyOf(event.address) === 'ipv6')
    const isOwn = !isUnnamed && this.#requested?.kind.endsWith(` ${event.of}`) === true
    for (const watcher of this.#watchers)
      if (event.of === 'anything' || watcher.topics.includes(TOPIC_OF[event.of]))
        queueMicrotask(() => this.#watchers.has(watcher) && watcher.onEvent(event, isOwn))
  }
}

/** Refuses a name as the kernel does (net/core/dev.c, dev_valid_name); a longer name does not fit into its attribute. */
function checkName(name: string): void {
  if (Buffer.byteLength(name) > 15) throw new Refused('ERANGE', 'Attribute failed policy validation')
  if (['', '.', '..'].includes(name) || /[\s/:]/.test(name)) throw new Refused('EINVAL')
}

/** Returns true if the kernel does not allow the two vxlan devices together (drivers/net/vxlan, vxlan_vni_in_use). */
const isSameVxlan = ({ vxlan: a }: Link, { vxlan: b }: Partial<Link>): boolean =>
  a !== undefined &&
  b !== undefined &&
  a.vni === b.vni &&
  a.port === b.port &&
  a.gbp === b.gbp &&
  a.external === b.external &&
  typeof a.local === typeof b.local

function changeErrorOf(change: Change, refused: Refused): WeftError {
  const error = errorOf(`\`${wordsOf(change)}\``, refused)
  const isUnknownType = refused.errno === 'EOPNOTSUPP' && change.kind === 'add link'
  return isUnknownType ? new WeftError('NO_DEVICE_TYPE', error.message, { cause: error.cause }) : error
}

function errorOf(what: string, { errno, explanation }: Refused): WeftError {
  const why = explanation === undefined ? errno : `${errno} (${explanation})`
  const message = `the kernel refused ${what.startsWith('`') ? what : `to ${what}`}: ${why}`
  const cause = { errno, explanation }
  return errno === 'EPERM'
    ? new WeftError('PERMISSION', message, { remedy: 'run as root', cause })
    : new WeftError('KERNEL', message, { cause })
}

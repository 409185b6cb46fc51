// broken.ts - defines faults of a network of several hosts: how each fault is made and undone, and what weft must
// report about the fault on the faulty host and on all healthy hosts. docs/broken-networks.md shows these reports for
// each fault. `npm run demo -- --broken NAME` makes a fault.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseEnv } from 'node:util'
import type { Family } from '../src/net/address.ts'
import { output } from './command.ts'
import { startEtcd, type Etcd } from './etcd.ts'
import {
  createLab,
  named,
  networkOf,
  subnetOfEnv,
  SWITCH_ADDRESS,
  type Daemon,
  type Host,
  type Lab,
  type Place,
  type Pod,
} from './lab.ts'
import { slowCable } from './slow-cable.ts'

/**
 * The sources in which an operator can see a fault of the network: commands of weft (`bench` is `weft bench`), the
 * status page, the Prometheus alerts, and weftd's events.
 */
export const READERS = ['status', 'page', 'doctor', 'explain', 'bench', 'alerts', 'events'] as const
export type Reader = (typeof READERS)[number]

/**
 * The findings that each report must contain, as words separated by blanks; test/support/readers.ts defines these
 * words. A word with a question mark is optional. A report that is not a member of this object must not show any fault.
 */
export type Expected = Partial<Readonly<Record<Reader, string>>>

export interface Fault {
  readonly title: string
  /** A description of the action that makes the fault, and of the fault's effect on packets. */
  readonly does: string
  readonly remedy: string
  /** Additional programs that the fault needs, as named in scripts/machine.mjs. */
  readonly needs?: readonly string[]
  readonly store?: 'etcd'
  /**
   * Called before weftd starts on the last host, which gets the fault; resolves with additional options for that weftd.
   */
  readonly before?: (lab: Lab) => Promise<DaemonMore>
  /** Makes the fault. Resolves with a function that undoes the fault. */
  readonly make: (network: Network) => Promise<() => Promise<unknown>>
  readonly there: Expected
  /** The expected reports on any host except the last, which has the fault. */
  readonly here: Expected
}

interface DaemonMore {
  readonly subnetFile?: string
  readonly env?: Readonly<Record<string, string>>
}

export interface Member {
  readonly host: Host
  readonly pod: Pod
  daemon: Daemon
}

export interface Network {
  readonly lab: Lab
  readonly members: readonly Member[]
  /** The last host, which has the fault. */
  readonly last: Member
  readonly spare: Host
  readonly etcd: Etcd | undefined
  readonly families: readonly Family[]
  readonly config: string
  /** Returns the environment variables for weftd and for weft's commands on a host. */
  readonly envOf: (host: Host) => Readonly<Record<string, string>>
  readonly start: (host: Host, args?: readonly string[]) => Daemon
  readonly close: () => Promise<void>
}

const CONFIG_KEY = '/coreos.com/network/config'
/**
 * Returns the network configuration with the udp backend. The network is dual-stack if `underlay` is given, else it has
 * only IPv4.
 */
export const udpConfig = (underlay?: Family): string =>
  JSON.stringify({
    Network: '10.5.0.0/16',
    ...(underlay === undefined ? {} : { EnableIPv6: true, IPv6Network: 'fd00:5::/48' }),
    Backend: { Type: 'udp', ...(underlay === undefined ? {} : { Underlay: underlay }) },
  })
const PORT = '8285'

const subnetOf = ({ host }: Member): string => networkOf(subnetOfEnv(host.subnetEnv()).gateway)
const readEnv = (file: string): Record<string, string> =>
  ({ ...parseEnv(readFileSync(file, 'utf8')) }) as Record<string, string>
const portOf = ({ host }: Member): string => host.name.replace('host', 'h')
/** Runs the shell command `make`. Resolves with a function that runs the shell command `undo`. */
async function makeAndUndo(place: Place, make: string, undo: string): Promise<() => Promise<unknown>> {
  await place.output(make.split(' '))
  return () => place.output(undo.split(' '))
}
const filter =
  (chain: string) =>
  async ({ last, families }: Network) => {
    const rule = `${chain} -p udp --dport ${PORT} -j DROP`
    const tools = families.map((family) => (family === 'ipv4' ? 'iptables' : 'ip6tables'))
    const undo = await Promise.all(
      tools.map((tool) => makeAndUndo(last.host, `${tool} -A ${rule}`, `${tool} -D ${rule}`)),
    )
    return () => Promise.all(undo.map((each) => each()))
  }
const setMtu = (place: Place, link: string) =>
  makeAndUndo(place, `ip link set ${link} mtu 1400`, `ip link set ${link} mtu 1500`)
const setClock = (lab: Lab, offset: string): void => writeFileSync(join(lab.folder, 'clock'), offset)

const NO_DAEMON: Expected = {
  status: 'no-daemon',
  page: 'no-daemon',
  doctor: 'daemon-silent',
  explain: 'no-daemon',
  bench: 'no-daemon',
  alerts: 'WeftDown',
}
const PEER_SILENT: Expected = {
  status: 'by-peers not-whole',
  page: 'red peer-silent',
  doctor: 'peer-silent',
  explain: 'out:peer',
  bench: 'not-inside',
}
/**
 * The expected reports about a peer whose packets arrive although it does not answer probes. `weft explain` marks the
 * step `peer` with `?`, because the peer's firewall may drop only echo requests.
 */
const PEER_SENDS: Expected = { ...PEER_SILENT, explain: 'out:peer?' }
/**
 * The expected reports on a host that no other host reaches. Prometheus shows one alert for this host instead of one
 * alert for each host that does not reach it.
 */
const UNREACHED: Expected = { ...PEER_SILENT, alerts: 'WeftNodeUnreached' }

/**
 * The expected reports if the path MTU is too small. Small packets still pass, so only reports that use long packets
 * can find the fault.
 */
const PATH_NARROW: Expected = {
  status: 'by-peers? narrow?',
  page: 'red? path-mtu?',
  doctor: 'path-mtu',
  explain: 'out:mtu?',
  bench: 'narrow? broken? loss?',
  alerts: 'WeftPathNarrow?',
}
const STORE_AWAY: Expected = {
  status: 'by-store store',
  page: 'red store-away',
  doctor: 'store-away',
  alerts: 'WeftStoreDown',
}
const CONFIG_GONE: Expected = {
  status: 'by-store',
  page: 'red config-missing',
  doctor: 'config-missing',
  events: 'lease-lost config-gone',
  alerts: 'WeftConfigGone',
}

export const FAULTS = {
  peer: {
    title: 'killed daemon',
    does: '`kill -9` ends weftd on the faulty host: the tunnel of this host is gone, and no packet reaches its containers',
    remedy: 'start weftd on the faulty host: `systemctl start weftd`',
    async make(network) {
      const { last } = network
      await last.daemon.stop('SIGKILL')
      return async () => {
        last.daemon = network.start(last.host)
        await last.daemon.line(/flannel is ready/)
      }
    },
    there: NO_DAEMON,
    here: { ...PEER_SILENT, bench: 'no-daemon-there' },
  },
  frozen: {
    title: 'frozen daemon',
    does: '`kill -STOP` stops weftd on the faulty host: weftd neither forwards packets nor answers',
    remedy: 'continue weftd (`kill -CONT`), or restart it: `systemctl restart weftd`',
    async make({ last }) {
      last.daemon.process.kill('SIGSTOP')
      return async () => last.daemon.process.kill('SIGCONT')
    },
    there: NO_DAEMON,
    here: { ...PEER_SILENT, bench: 'silent-there' },
  },
  port: {
    title: 'firewall in',
    does: `\`iptables -A INPUT -p udp --dport ${PORT} -j DROP\` on the faulty host drops the tunnel's packets from other hosts`,
    remedy: 'remove the rule that `weft doctor` names on the faulty host',
    needs: ['iptables'],
    make: filter('INPUT'),
    there: { ...UNREACHED, doctor: 'port-dropped peer-silent', explain: 'out:peer in:firewall' },
    here: PEER_SENDS,
  },
  'port-out': {
    title: 'firewall out',
    does: `\`iptables -A OUTPUT -p udp --dport ${PORT} -j DROP\` on the faulty host drops the tunnel's packets to other hosts`,
    remedy: 'remove the rule that `weft doctor` names on the faulty host',
    needs: ['iptables'],
    make: filter('OUTPUT'),
    there: {
      ...UNREACHED,
      page: 'red peer-silent packets-dropped?',
      doctor: 'port-dropped peer-silent packets-dropped?',
      explain: 'out:firewall out:peer?',
    },
    here: PEER_SILENT,
  },
  'answers-only': {
    title: 'firewall that accepts only replies',
    does: 'the chain INPUT of the faulty host accepts only TCP, ICMP, and replies to packets that the host sent (`--ctstate RELATED,ESTABLISHED`), as in many clouds',
    remedy:
      'accept packets to the port of the backend in a rule before the rule that `weft doctor` names on the faulty host',
    needs: ['iptables'],
    async make({ last }) {
      const rules = ['-m conntrack --ctstate RELATED,ESTABLISHED', '-i lo', '-p icmp', '-p tcp']
      for (const rule of rules) await last.host.output(`iptables -A INPUT ${rule} -j ACCEPT`.split(' '))
      await last.host.output('iptables -P INPUT DROP'.split(' '))
      return async () => {
        await last.host.output('iptables -P INPUT ACCEPT'.split(' '))
        await last.host.output('iptables -F INPUT'.split(' '))
      }
    },
    there: { ...UNREACHED, doctor: 'port-dropped peer-silent' },
    here: PEER_SENDS,
  },
  reject: {
    title: "firewalld's reject",
    does: 'an nftables chain on the faulty host has the policy accept, but its last rule rejects all forwarded packets: only containers are cut off',
    remedy: 'accept packets of the network in the chain that `weft doctor` names on the faulty host',
    needs: ['nft'],
    async make({ last }) {
      await last.host.output([
        'nft',
        'table inet firewalld { chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept; ' +
          'ct state { established, related } accept; iifname "lo" accept; jump zones; reject with icmpx admin-prohibited; }; ' +
          'chain zones { goto public; }; chain public { reject with icmpx admin-prohibited; }; }',
      ])
      return () => last.host.output(['nft', 'delete table inet firewalld'])
    },
    // Only `doctor` and `explain` find this fault. The firewall rejects only forwarded packets. The hosts themselves
    // send the probes, so the probes pass.
    there: { doctor: 'forward-dropped', explain: 'out:firewall in:firewall' },
    here: {},
  },
  policy: {
    title: 'policy routing rule',
    does: '`ip rule add iif cni0 lookup 30400` on the faulty host: a separate routing table sends the packets of its containers to the router',
    remedy:
      'remove the rule that `weft doctor` names on the faulty host, or give the main routing table a higher priority',
    async make({ last }) {
      await last.host.output(`ip route add default via ${SWITCH_ADDRESS} table 30400`.split(' '))
      await last.host.output('ip rule add pref 30400 iif cni0 lookup 30400'.split(' '))
      return async () => {
        await last.host.output('ip rule del pref 30400'.split(' '))
        await last.host.output('ip route flush table 30400'.split(' '))
      }
    },
    there: { doctor: 'policy-route', explain: 'out:route' },
    here: {},
  },
  'path-mtu': {
    title: 'MTU on the path',
    does: '`ip link set mtu 1400` at the switch port of the faulty host: the switch silently drops longer packets',
    remedy: 'raise the MTU of the switch port, or lower the MTU of all hosts',
    make: ({ lab, last }) => setMtu(lab.switch, portOf(last)),
    there: PATH_NARROW,
    here: PATH_NARROW,
  },
  mtu: {
    title: 'MTU on the host',
    does: '`ip link set eth0 mtu 1400` on the faulty host: its weftd uses the new MTU, but other hosts still send longer packets',
    remedy: 'set the MTU of the interface to its former value, or give all hosts the new MTU',
    make: ({ last }) => setMtu(last.host, 'eth0'),
    there: { page: 'mtu-shrunk?', doctor: 'bridge-mtu mtu-shrunk? path-mtu?', alerts: 'WeftPathNarrow?' },
    here: PATH_NARROW,
  },
  route: {
    title: 'wrong route',
    does: "on the faulty host another program's route sends packets for another host's subnet to the router",
    remedy: 'remove the route that `weft doctor` names on the faulty host: `ip route del`',
    make({ members, last }) {
      const subnet = subnetOf(members[0] as Member)
      return makeAndUndo(last.host, `ip route add ${subnet} via ${SWITCH_ADDRESS}`, `ip route del ${subnet}`)
    },
    there: {
      ...PEER_SILENT,
      doctor: 'foreign-route peer-silent',
      explain: 'out:route out:peer?',
      alerts: 'WeftPeersUnreached',
    },
    here: { ...PEER_SILENT, alerts: 'WeftPeersUnreached' },
  },
  etcd: {
    title: 'etcd down',
    does: 'etcd is killed: hosts still reach the peers that they know, but cannot renew their leases',
    remedy: 'start etcd again',
    needs: ['etcd', 'etcdctl'],
    store: 'etcd',
    async make({ etcd }) {
      await etcd?.kill()
      return async () => etcd?.start()
    },
    there: STORE_AWAY,
    here: STORE_AWAY,
  },
  wiped: {
    title: 'etcd wiped',
    does: '`etcdctl del "" --prefix` deletes all leases and the network configuration; each node writes its lease again',
    remedy: 'write the network configuration again: `weft config set`',
    needs: ['etcd', 'etcdctl'],
    store: 'etcd',
    async make({ etcd, config }) {
      await etcd?.ctl('del', '', '--prefix')
      return async () => etcd?.ctl('put', CONFIG_KEY, config)
    },
    there: CONFIG_GONE,
    here: CONFIG_GONE,
  },
  'lost-route': {
    title: 'lost route',
    does: '`ip route del` deletes the route to the network on the faulty host, and weftd restores the route immediately',
    remedy: 'no repair is needed; if it happens again, find the program that removes the route',
    make: async ({ last }) => {
      await last.host.output('ip route del 10.5.0.0/16'.split(' '))
      return async () => {}
    },
    there: { status: 'repairs', events: 'repaired' },
    here: {},
  },
  twin: {
    title: 'two nodes with one address',
    does: 'another host starts a weftd with the `--public-ip` of the faulty host: both hosts use the same subnet',
    remedy: 'give each of the two hosts its own address with --public-ip or --iface',
    async make({ start, spare, last, families }) {
      const ipv6 = families.includes('ipv6') ? ['--public-ipv6', last.host.ipv6] : []
      const twin = start(spare, ['--public-ip', last.host.address, ...ipv6])
      await twin.line(/flannel is ready/)
      return () => twin.stop()
    },
    there: {
      status: 'by-host',
      page: 'red address-twice',
      doctor: 'address-twice',
      alerts: 'WeftHostImpaired',
      events: 'twin',
    },
    here: {},
  },
  clock: {
    title: 'wrong clock',
    does: 'the clock of the faulty host is two hours ahead',
    remedy: 'set the clock by NTP: `timedatectl set-ntp true`',
    needs: ['etcd', 'etcdctl', 'libfaketime'],
    store: 'etcd',
    async before(lab) {
      setClock(lab, '+0')
      const preload = { LD_PRELOAD: '/usr/$LIB/faketime/libfaketime.so.1', FAKETIME_DONT_FAKE_MONOTONIC: '1' }
      return { env: { ...preload, FAKETIME_TIMESTAMP_FILE: join(lab.folder, 'clock'), FAKETIME_NO_CACHE: '1' } }
    },
    async make({ lab }) {
      setClock(lab, '+2h')
      return async () => setClock(lab, '+0')
    },
    there: { doctor: 'clock-off', alerts: 'WeftClockOff' },
    here: {},
  },
  disk: {
    title: 'full disk',
    does: 'on the faulty host the file system of subnet.env is full, and subnet.env is gone',
    remedy: 'free disk space: weftd then writes subnet.env within seconds',
    before: async (lab) => ({ subnetFile: join(await lab.mountMemory('small', '64k'), 'subnet.env') }),
    async make({ lab }) {
      const small = join(lab.folder, 'small')
      const filler = join(small, 'filler')
      rmSync(join(small, 'subnet.env'))
      await output(['sh', '-c', 'cat /dev/zero > "$0" 2> /dev/null || true', filler])
      return async () => rmSync(filler)
    },
    there: {
      status: 'by-host repairs',
      page: 'red',
      doctor: 'subnet-env-wrong',
      alerts: 'WeftHostImpaired',
      events: 'repaired not-written',
    },
    here: {},
  },
  loss: {
    title: '5% lost one way',
    does: 'one in twenty packets to the faulty host is lost, but no packet from the faulty host',
    remedy: 'find the cause of the loss outside the tunnel',
    needs: ['nft'],
    async make({ lab, last }) {
      await lab.switch.output([
        'nft',
        'add table bridge broken; add chain bridge broken way { type filter hook forward priority 0; }; ' +
          `add rule bridge broken way oifname ${portOf(last)} numgen random mod 100 < 5 drop`,
      ])
      return () => lab.switch.output(['nft', 'delete table bridge broken'])
    },
    there: { status: 'loss?', page: 'peer-lossy?', doctor: 'peer-lossy?', bench: 'loss?' },
    here: { status: 'loss?', page: 'peer-lossy?', doctor: 'peer-lossy?', bench: 'loss' },
  },
  slow: {
    title: 'slow peer',
    does: 'each packet to and from the faulty host takes 150 ms',
    remedy: 'find the slow link between the hosts, outside the tunnel',
    needs: ['python3'],
    make: ({ lab, last }) => slowCable(lab, Number(last.host.name.replace('host', '')), 150),
    there: { status: 'slow', bench: 'slow' },
    here: { status: 'slow', bench: 'slow' },
  },
} as const satisfies Readonly<Record<string, Fault>>

export type FaultName = keyof typeof FAULTS
export const FAULT_NAMES = Object.keys(FAULTS) as FaultName[]

interface NetworkOptions {
  readonly hosts: number
  readonly args: readonly string[]
  /** The family of the underlay in a dual-stack network. If `underlay` is undefined, the network has only IPv4. */
  readonly underlay?: Family | undefined
}

/** Simulates the hosts on which the fault `fault` will be made, each with a weftd and a container. */
export async function openNetwork(fault: Fault, { hosts, args, underlay }: NetworkOptions): Promise<Network> {
  const families: readonly Family[] = underlay === undefined ? ['ipv4'] : ['ipv4', 'ipv6']
  const config = udpConfig(underlay)
  // Make one more host than requested. The additional host runs no weftd; faults use it as `spare`.
  const lab = await createLab({ hosts: hosts + 1, families })
  let etcd: Etcd | undefined
  const close = async (): Promise<void> => {
    await lab.close()
    await etcd?.close()
  }
  try {
    const leases = join(lab.folder, 'leases')
    if (fault.store === 'etcd') {
      etcd = await startEtcd({ namespace: lab.switch.namespace, address: SWITCH_ADDRESS })
      await etcd.ctl('put', CONFIG_KEY, config)
    } else {
      mkdirSync(leases)
      writeFileSync(join(leases, 'config'), config)
    }
    const store = etcd ? ['--etcd-endpoints', etcd.endpoint] : ['--lease-dir', leases]
    const own = (await fault.before?.(lab)) ?? {}
    const lastHost = lab.hosts[hosts - 1] as Host
    const fileOf = (host: Host): string => (host === lastHost && own.subnetFile) || host.subnetFile
    const envOf: Network['envOf'] = (host) => (host === lastHost && own.env) || {}
    const start: Network['start'] = (host, more = []) =>
      host.startDaemon({
        before: named(host.name),
        args: [...store, ...args, '--subnet-file', fileOf(host), ...more],
        env: envOf(host),
      })
    const members: Member[] = []
    for (const host of lab.hosts.slice(0, hosts)) {
      const daemon = start(host)
      await daemon.line(/flannel is ready/)
      members.push({ host, daemon, pod: await host.startPod(subnetOfEnv(readEnv(fileOf(host)))) })
    }
    return {
      lab,
      members,
      last: members.at(-1) as Member,
      spare: lab.hosts.at(-1) as Host,
      envOf,
      families,
      config,
      etcd,
      start,
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}

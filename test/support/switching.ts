// switching.ts - enables IPv6 in a running cluster node by node, and disables it again; checks each step, with any store of leases.

import { expect } from 'vitest'
import { networkOf, type Daemon, type Host, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from './event.ts'
import { pinging } from './pinging.ts'

/** The `Backend` of a configuration, and FLANNEL_MTU without and with IPv6. */
interface SwitchedBackend {
  readonly options: object
  readonly mtus: readonly [ipv4: number, both: number]
}
export const VXLAN: SwitchedBackend = { options: { Type: 'vxlan', DataPath: 'kernel' }, mtus: [1450, 1430] }
export const HOST_GW: SwitchedBackend = { options: { Type: 'host-gw' }, mtus: [1500, 1500] }
/** The seconds between two pings; a gap that a person would notice contains many pings. */
const PING_S = 0.01

/** Three hosts or more without a daemon, and the store of their leases. */
interface Switched {
  readonly hosts: readonly Host[]
  readonly backend: SwitchedBackend
  /** Writes the network configuration, which a daemon reads at its start. */
  readonly configure: (config: object) => Promise<void> | void
  /**
   * Prepares a host for IPv6, for example gives its Node object an IPv6 CIDR. Resolves when all daemons have seen the change. The
   * other nodes may consider the node gone meanwhile.
   */
  readonly prepare?: (host: Host, daemons: readonly Daemon[]) => Promise<void>
  readonly start: (host: Host) => Daemon
  /** Returns what the store has of a host: its subnets and public addresses. */
  readonly published: (host: Host) => Promise<readonly string[]>
}

/** Returns the subnets of a host from subnet.env, IPv4 first. */
const subnetsOf = (host: Host): string[] => {
  const { FLANNEL_SUBNET = '', FLANNEL_IPV6_SUBNET } = host.subnetEnv()
  return [FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET].filter((each) => each !== undefined).map(networkOf)
}

async function allReach(pods: readonly Pod[], addressOf: (pod: Pod) => string): Promise<void> {
  const pairs = pods.flatMap((from) => pods.filter((to) => to !== from).map((to) => [from, to] as const))
  await Promise.all(pairs.map(([from, to]) => reach(from.namespace, addressOf(to))))
}
const ipv4Of = (pod: Pod): string => pod.address
const ipv6Of = (pod: Pod): string => pod.ipv6 ?? ''

/** Runs `body` while containers ping each other in a ring, per family; rejects if a ping was lost. */
async function withoutLoss(ipv4: readonly Pod[], ipv6: readonly Pod[], body: () => Promise<void>): Promise<void> {
  const ring = (pods: readonly Pod[], addressOf: (pod: Pod) => string) =>
    pods.length < 2
      ? []
      : pods.map((from, at) => {
          const to = pods[(at + 1) % pods.length]!
          return pinging(from, to, { address: addressOf(to), everyS: PING_S })
        })
  const pings = [...ring(ipv4, ipv4Of), ...ring(ipv6, ipv6Of)]
  await body()
  for (const { sent, lost, errors } of await Promise.all(pings.map((each) => each.stop()))) {
    expect(sent).toBeGreaterThan(0)
    expect({ lost, errors }, `of ${sent}`).toEqual({ lost: 0, errors: 0 })
  }
}

/** Enables and disables IPv6. No ping of a family may be lost between containers that have it, and each node must keep its IPv4 subnet. */
export async function switchOnAndOff(cluster: Switched): Promise<void> {
  const { hosts, backend, configure, prepare, start, published } = cluster
  const ipv4 = { Network: '10.5.0.0/16', Backend: backend.options }
  await configure(ipv4)
  const daemons = hosts.map(start)
  const ready = (daemon: Daemon): Promise<string> => daemon.line(/flannel is ready/)
  await Promise.all(daemons.map(ready))
  const old = await Promise.all(hosts.map((host) => host.startPod()))
  await allReach(old, ipv4Of)
  const before = hosts.map(subnetsOf)
  /** Restarts a host's daemon, which then reads the present configuration. */
  const restart = async (at: number): Promise<void> => {
    await daemons[at]!.stop()
    daemons[at] = start(hosts[at]!)
    await ready(daemons[at])
  }

  for (const host of hosts) {
    await prepare?.(host, daemons)
    await allReach(old, ipv4Of)
  }
  await configure({ ...ipv4, EnableIPv6: true, IPv6Network: 'fd00:5::/48' })
  const fresh: Pod[] = []
  for (const [at, host] of hosts.entries()) {
    await withoutLoss(old, [...fresh], async () => {
      await restart(at)
      const subnets = subnetsOf(host)
      expect(subnets).toEqual([before[at]![0], expect.stringMatching(/^fd00:5:0:[\da-f]+::\/64$/)])
      expect(host.subnetEnv()['FLANNEL_MTU']).toBe(String(backend.mtus[1]))
      expect(await published(host)).toEqual([...subnets, host.address, host.ipv6])
      // A new container has both families, next to the earlier ones.
      const pod = await host.startPod()
      fresh.push(pod)
      await allReach([...old, pod], ipv4Of)
      await allReach(fresh, ipv6Of)
    })
  }
  // An earlier container keeps its addresses.
  for (const pod of old) {
    expect(await pod.output(['ip', 'link', 'show', 'dev', 'eth0'])).toContain(`mtu ${backend.mtus[0]} `)
    expect(await pod.output(['ip', '-6', 'address', 'show', 'dev', 'eth0', 'scope', 'global'])).toBe('')
  }

  await configure(ipv4)
  for (const at of hosts.keys()) {
    const switched = fresh.slice(at + 1)
    await withoutLoss(old, switched, async () => {
      await restart(at)
      await allReach([...old, ...fresh], ipv4Of)
      await allReach(switched, ipv6Of)
    })
  }
  for (const [at, host] of hosts.entries()) {
    expect(subnetsOf(host)).toEqual(before[at])
    await eventually(async () => expect(await published(host)).toEqual([before[at]![0], host.address]))
    await eventually(async () => expect(await host.output(['ip', '-br', 'link'])).not.toContain('flannel-v6'))
  }
  await allReach([...old, ...fresh], ipv4Of)
}

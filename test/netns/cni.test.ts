// cni.test.ts - the CNI plugins attach containers with our subnet.env, and the containers reach each other over each family.
//
// The plugins bridge and host-local are the host's. The plugin named flannel turns subnet.env into their configuration. If the host lacks
// it, as Debian does since version 12, the test does this itself.

import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { output } from '../../lab/command.ts'
import { createLab, networkOf, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { CNI_FOLDERS } from '../../scripts/machine.mjs'
import type { Family } from '../../src/net/address.ts'
import { answers } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, "CNI's plugins", 'ping')

const programOf = (name: string): string | undefined =>
  CNI_FOLDERS.map((folder) => join(folder, name)).find((path) => existsSync(path))

interface CniResult {
  readonly ips: readonly { readonly address: string; readonly gateway: string }[]
  readonly routes: readonly { readonly dst: string }[]
}

type Env = Readonly<Record<string, string>>
/** The delegate in a network configuration of the plugin flannel, as in its documentation. */
const DELEGATE = { isDefaultGateway: true, hairpinMode: true }

/**
 * Returns the configuration that flannel's plugin passes to bridge (cni-plugin v1.9.1-flannel1, flannel.go, flannel_linux.go:
 * getDelegateIPAM, doCmdAdd).
 */
function delegated(env: Env): object {
  const list = (name: string): string[] => (env[name] ?? '').split(',').filter(Boolean)
  const subnets = [...list('FLANNEL_SUBNET'), ...list('FLANNEL_IPV6_SUBNET')]
  const networks = [...list('FLANNEL_NETWORK'), ...list('FLANNEL_IPV6_NETWORK')]
  return {
    cniVersion: '0.3.1',
    name: 'cbr0',
    type: 'bridge',
    isGateway: true,
    ...DELEGATE,
    ipMasq: env['FLANNEL_IPMASQ'] !== 'true',
    mtu: Number(env['FLANNEL_MTU']),
    ipam: {
      type: 'host-local',
      ranges: subnets.map((subnet) => [{ subnet: networkOf(subnet) }]),
      routes: networks.map((dst) => ({ dst })),
    },
  }
}

let lab: Lab
const pods: string[] = []
afterEach(async () => {
  for (const pod of pods.splice(0)) await output(['ip', 'netns', 'del', pod])
  await lab.close()
})

/** Attaches a new container to a host's network, as a container runtime does. */
async function attach(host: Host): Promise<CniResult & { readonly pod: string }> {
  const pod = `${lab.id}-cni-${pods.length}`
  await output(['ip', 'netns', 'add', pod])
  pods.push(pod)
  const flannel = programOf('flannel')
  const config = flannel
    ? { cniVersion: '0.3.1', name: 'cbr0', type: 'flannel', subnetFile: host.subnetFile, delegate: DELEGATE }
    : delegated(host.subnetEnv())
  const variables = {
    CNI_COMMAND: 'ADD',
    CNI_CONTAINERID: pod,
    CNI_IFNAME: 'eth0',
    CNI_NETNS: `/run/netns/${pod}`,
    CNI_PATH: CNI_FOLDERS.join(':'),
  }
  // The folder in which the plugins keep their state of a host.
  const kept = join(dirname(host.subnetFile), 'cni')
  mkdirSync(kept, { recursive: true })
  const hidden = 'mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/cni && mount --bind "$0" /var/lib/cni && exec "$@"'
  const answer = await host.output(
    [
      'unshare',
      '--mount',
      'sh',
      '-c',
      hidden,
      kept,
      'env',
      ...Object.entries(variables).map(([name, value]) => `${name}=${value}`),
      flannel ?? programOf('bridge')!,
    ],
    { input: JSON.stringify(config) },
  )
  return { ...(JSON.parse(answer) as CniResult), pod }
}

const IPV4 = { Network: '10.5.0.0/16' }
const IPV6 = { EnableIPv6: true, IPv6Network: 'fd00:5::/48' }
const NETWORKS: readonly (readonly [what: string, config: object, families: readonly Family[]])[] = [
  ['IPv4', IPV4, ['ipv4']],
  ['both families', { ...IPV4, ...IPV6, Backend: { Type: 'host-gw' } }, ['ipv4', 'ipv6']],
  ['IPv6 alone', { EnableIPv4: false, ...IPV6, Backend: { Type: 'host-gw' } }, ['ipv6']],
]

/** Creates the lease directory with this configuration, and returns its path. */
function configured(config: object): string {
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases, { recursive: true })
  writeFileSync(join(leases, 'config'), JSON.stringify(config))
  return leases
}

it.each(NETWORKS)(
  "flannel's CNI plugin attaches containers with our subnet.env, and they reach each other: %s",
  async (_what, config, families) => {
    lab = await createLab({ hosts: 2, families: ['ipv4', 'ipv6'] })
    const leases = configured(config)
    const daemons = lab.hosts.map((host, index) =>
      // The plugin masquerades if the daemon does not.
      host.startDaemon({ args: ['--lease-dir', leases, ...(index === 0 ? ['--ip-masq'] : [])] }),
    )
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))

    const attached: { readonly pod: string; readonly addresses: readonly string[] }[] = []
    for (const host of lab.hosts) {
      const env = host.subnetEnv()
      const { ips, routes, pod } = await attach(host)
      const gateways = families.map(
        (family) => (family === 'ipv4' ? env['FLANNEL_SUBNET'] : env['FLANNEL_IPV6_SUBNET']) ?? '',
      )
      // The bridge has the address in subnet.env, and the first container has the next address.
      expect(ips.map(({ gateway }) => gateway)).toEqual(gateways.map((each) => each.split('/')[0]))
      expect(ips.map(({ address }) => address)).toEqual(gateways.map((each) => each.replace('1/', '2/')))
      expect(routes.map(({ dst }) => dst)).toEqual(
        expect.arrayContaining(families.map((family) => (family === 'ipv4' ? '10.5.0.0/16' : 'fd00:5::/48'))),
      )
      expect(await output(['ip', '-n', pod, 'link', 'show', 'dev', 'eth0'])).toContain(`mtu ${env['FLANNEL_MTU']} `)
      attached.push({ pod, addresses: ips.map(({ address }) => address.split('/')[0]!) })
    }
    const [a, b] = attached as [(typeof attached)[0], (typeof attached)[0]]
    for (const [at, address] of b.addresses.entries()) {
      await reach(a.pod, address)
      await answers(a.pod, address)
      await answers(b.pod, a.addresses[at]!)
    }
  },
)

it('a host whose network gets IPv6 passes it to the next container on the existing bridge', async () => {
  lab = await createLab({ hosts: 1, families: ['ipv4', 'ipv6'] })
  const [host] = lab.hosts as [Host]
  const run = async (config: object): Promise<Daemon> => {
    const daemon = host.startDaemon({ args: ['--lease-dir', configured(config)] })
    await daemon.line(/flannel is ready/)
    return daemon
  }
  const before = await run({ ...IPV4, Backend: { Type: 'host-gw' } })
  const { ips: first } = await attach(host)
  expect(first).toHaveLength(1)
  await before.stop()
  await run({ ...IPV4, ...IPV6, Backend: { Type: 'host-gw' } })
  const { ips: second, pod } = await attach(host)
  expect(second.map(({ gateway }) => gateway)).toEqual([
    first[0]!.gateway,
    host.subnetEnv()['FLANNEL_IPV6_SUBNET']!.split('/')[0],
  ])
  await answers(pod, first[0]!.address.split('/')[0]!)
  await answers(pod, second[1]!.gateway)
})

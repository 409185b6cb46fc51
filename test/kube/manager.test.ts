// manager.test.ts - nodes of the Kubernetes API as leases: one contract, tested with the tests' small server and with a real one.
//
// `npm run test:kube` runs both, `npm test` only the small one.

import { setMaxListeners } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { secretUrls } from '../../src/base/secret.ts'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { createKubeManager, type KubeManagerOptions } from '../../src/control/kube/kube-manager.ts'
import { followLeases, type FollowState } from '../../src/control/lease/follow.ts'
import type { Lease, LeaseAttrs } from '../../src/control/lease/lease.ts'
import type { SubnetManager } from '../../src/control/lease/subnet-manager.ts'
import { addressText } from '../../src/net/address.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { parseIpv6 } from '../../src/net/ipv6.ts'
import { eventually } from '../support/event.ts'
import { WEFT_TOKEN, type KubeApi } from '../support/kube-admin.ts'
import { allow, KUBE_APISERVER, startKubeApiserver, type RealKubeApi } from '../support/kube-apiserver.ts'
import { manifestObjects, rightsOf } from '../support/kube-manifest.ts'
import { startKubeServer } from '../support/kube-server.ts'
import { needs } from '../support/needs.ts'

const P = 'flannel.alpha.coreos.com'
const attrs = (publicIp: string, more: Partial<LeaseAttrs> = {}): LeaseAttrs => ({
  publicIp: { ipv4: parseIpv4(publicIp)! },
  backendType: '',
  ...more,
})
const config = parseNetworkConfig('{"Network":"10.5.0.0/16"}', { areGiven: true })

const BEDS: readonly (readonly [string, () => Promise<KubeApi>])[] =
  KUBE_APISERVER === ''
    ? [['small', startKubeServer]]
    : [
        ['small', startKubeServer],
        ['real', startKubeApiserver],
      ]

describe.each(BEDS)('on the %s server', (_kind, start) => {
  const missing = needs('openssl', ...(_kind === 'real' ? ['etcd', 'etcdctl'] : []))
  let api: KubeApi
  let folder: string
  let stopping: AbortController
  let lines: string[]
  let managers: SubnetManager[]
  beforeAll(async () => {
    if (missing === undefined) api = await start()
    if (_kind === 'real') await allow(api, GET_PODS)
  })
  afterAll(() => api?.close())
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'weft-kube-'))
    stopping = new AbortController()
    lines = []
    managers = []
  })
  afterEach(async () => {
    stopping.abort(new Error('the test is over'))
    for (const manager of managers) await manager.close()
    rmSync(folder, { recursive: true })
    const { body } = await api.admin.call('GET', '/api/v1/nodes')
    for (const { metadata } of (body as { items: { metadata: { name: string } }[] }).items)
      await api.admin.removeNode(metadata.name)
  })

  const log = {
    info: (line: string) => void lines.push(`I ${line}`),
    warn: (line: string) => void lines.push(`W ${line}`),
    error: (line: string) => void lines.push(`E ${line}`),
    v: () => false,
  }
  function writeKubeconfig(token = WEFT_TOKEN): string {
    const path = join(folder, 'kubeconfig')
    writeFileSync(join(folder, 'token'), token)
    writeFileSync(
      path,
      `apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "${api.url}", certificate-authority: ca.crt}}]
users: [{name: weft, user: {tokenFile: token}}]
contexts: [{name: test, context: {cluster: test, user: weft}}]
`,
    )
    writeFileSync(join(folder, 'ca.crt'), readFileSync(api.caFile))
    return path
  }
  async function managerOf(node: string, more: Partial<KubeManagerOptions> = {}): Promise<Required<SubnetManager>> {
    const manager = await createKubeManager({
      apiUrl: secretUrls(''),
      kubeconfig: writeKubeconfig(),
      environment: { NODE_NAME: node },
      annotationPrefix: P,
      netConfigPath: join(folder, 'net-conf.json'),
      setCondition: true,
      log,
      signal: stopping.signal,
      ...more,
    })
    managers.push(manager)
    return manager as Required<SubnetManager>
  }
  const obtain = (manager: SubnetManager, what: LeaseAttrs) =>
    manager.holder(config).obtain(what, {}, log, stopping.signal)

  /** Follows the nodes; `view` returns the public IP and backend data of each key. */
  function follow(manager: SubnetManager, relistMs?: number) {
    const state: FollowState = { listedAt: undefined, failing: false, held: 0, holds: 0 }
    const seen = {
      state,
      leases: new Map() as ReadonlyMap<string, Lease>,
      view: () => viewOf(seen.leases),
      error: undefined as unknown,
    }
    const run = async (): Promise<void> => {
      for await (const { leases } of followLeases(manager.source, {
        log,
        signal: stopping.signal,
        state,
        ...(relistMs ? { relistMs } : {}),
      }))
        seen.leases = leases
    }
    run().catch((error: unknown) => (seen.error = error))
    return seen
  }
  const viewOf = (leases: ReadonlyMap<string, Lease>): Record<string, string> =>
    Object.fromEntries(
      [...leases]
        .map(([key, lease]) => [key, addressText(lease.attrs.publicIp)])
        .toSorted((a, b) => a[0]!.localeCompare(b[0]!)),
    )

  it("takes the podCIDR of its node, and writes flannel's annotations, once", async () => {
    await api.admin.addNode('node1', '10.5.1.0/24')
    const manager = await managerOf('node1')
    const vxlan = attrs('192.168.77.1', { backendType: 'vxlan', backendData: { VNI: 1, VtepMAC: 'aa:bb:cc:dd:ee:ff' } })
    const lease = await obtain(manager, vxlan)
    expect(lease).toMatchObject({ key: '10.5.1.0-24', attrs: vxlan, expiresAt: undefined })
    const written = await api.admin.node('node1')
    expect(written.metadata?.annotations).toEqual({
      'node.alpha.kubernetes.io/ttl': '0',
      [`${P}/backend-data`]: '{"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:ff"}',
      [`${P}/backend-type`]: 'vxlan',
      [`${P}/kube-subnet-manager`]: 'true',
      [`${P}/public-ip`]: '192.168.77.1',
    })
    await obtain(manager, vxlan)
    await manager.holder(config).renew(lease, vxlan, log, stopping.signal)
    expect((await api.admin.node('node1')).metadata?.resourceVersion).toBe(written.metadata?.resourceVersion)
    expect(await manager.published(stopping.signal)).toEqual(vxlan)
    await obtain(manager, attrs('192.168.77.1')) // udp
    expect((await api.admin.node('node1')).metadata?.annotations).toMatchObject({
      [`${P}/backend-data`]: 'null',
      [`${P}/backend-type`]: '',
    })
    expect(lines).toContain('I Creating the node lease for IPv4. This is the n.Spec.PodCIDRs: [10.5.1.0/24]')
  })

  it('reports that the network is up, once for each node with its name', async () => {
    await api.admin.addNode('node1', '10.5.1.0/24')
    const manager = await managerOf('node1')
    const lease = await obtain(manager, attrs('192.168.77.1'))
    await manager.ready(stopping.signal)
    const condition = async () =>
      (await api.admin.node('node1')).status?.conditions?.find(({ type }) => type === 'NetworkUnavailable')
    expect(await condition()).toMatchObject({
      status: 'False',
      reason: 'FlannelIsUp',
      message: 'Flannel is running on this node',
      lastTransitionTime: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/),
    })
    const { metadata } = await api.admin.node('node1')
    await manager.ready(stopping.signal)
    expect((await api.admin.node('node1')).metadata?.resourceVersion).toBe(metadata?.resourceVersion)
    await api.admin.removeNode('node1')
    await api.admin.addNode('node1', '10.5.1.0/24')
    await manager.holder(config).renew(lease, lease.attrs, log, stopping.signal)
    await manager.ready(stopping.signal)
    expect(await condition()).toMatchObject({ status: 'False' })
  })

  it('waits for a podCIDR that comes late, and reports that in an Event', async () => {
    const manager = await managerOf('node1')
    const obtaining = obtain(manager, attrs('192.168.77.1'))
    // If the node is not registered, the log does not explain how it gets a podCIDR.
    await eventually(() =>
      expect(lines.join()).toMatch(
        /node "node1" is not there: waiting for it; a kubelet registers it; NODE_NAME must be/,
      ),
    )
    expect(lines.join()).not.toContain('--allocate-node-cidrs')
    await api.admin.addNode('node1')
    await eventually(async () =>
      expect(await api.admin.events()).toContainEqual(
        expect.objectContaining({
          reason: 'NoPodCIDR',
          type: 'Warning',
          involvedObject: expect.objectContaining({ kind: 'Node', name: 'node1', uid: 'node1' }),
        }),
      ),
    )
    await api.admin.givePodCidr('node1', '10.5.9.0/24')
    expect((await obtaining).key).toBe('10.5.9.0-24')
  })

  it('refuses a podCIDR outside the network', async () => {
    await api.admin.addNode('node1', '10.6.1.0/24')
    const manager = await managerOf('node1')
    await expect(obtain(manager, attrs('192.168.77.1'))).rejects.toMatchObject({
      code: 'CONFIG',
      message: `subnet "10.5.0.0/16" specified in the flannel net config doesn't contain "10.6.1.0/24" PodCIDR of the "node1" node`,
    })
  })

  it('follows nodes that appear, change and disappear, and ignores those without annotations', async () => {
    await api.admin.addNode('node1', '10.5.1.0/24')
    await api.admin.addNode('bare', '10.5.99.0/24')
    const manager = await managerOf('node1')
    const lease = await obtain(manager, attrs('192.168.77.1'))
    const seen = follow(manager)
    await eventually(() => expect(seen.view()).toEqual({ '10.5.1.0-24': '192.168.77.1' }))
    // Add a node after the listing, so that the watch delivers only the node's metadata.
    await api.admin.addNode('node2')
    await api.admin.givePodCidr('node2', '10.5.2.0/24')
    await api.admin.annotate('node2', flannels('192.168.77.2'))
    await eventually(() => expect(seen.view()).toMatchObject({ '10.5.2.0-24': '192.168.77.2' }))
    await api.admin.annotate('node2', { [`${P}/public-ip`]: '192.168.77.222' })
    await eventually(() => expect(seen.view()).toMatchObject({ '10.5.2.0-24': '192.168.77.222' }))
    // A junk annotation changes nothing, and is logged.
    await api.admin.annotate('node2', { [`${P}/public-ip`]: 'junk' })
    await eventually(() =>
      expect(lines.join('\n')).toContain(`Ignoring bad subnet node: 10.5.2.0-24: node node2: ${P}/public-ip is "junk"`),
    )
    expect(seen.view()).toMatchObject({ '10.5.2.0-24': '192.168.77.222' })
    // The node is recreated with another podCIDR.
    await api.admin.removeNode('node2')
    await eventually(() => expect(seen.view()).toEqual({ '10.5.1.0-24': '192.168.77.1' }))
    await api.admin.addNode('node2', '10.5.22.0/24', flannels('192.168.77.2'))
    await eventually(() =>
      expect(seen.view()).toEqual({ '10.5.1.0-24': '192.168.77.1', '10.5.22.0-24': '192.168.77.2' }),
    )
    // The node loses the annotation that marks it as flannel's.
    await api.admin.annotate('node2', { [`${P}/kube-subnet-manager`]: null })
    await eventually(() => expect(seen.view()).toEqual({ '10.5.1.0-24': '192.168.77.1' }))
    // All annotations of the own node are changed. The view asks for a renewal, which writes them again.
    await api.admin.annotate('node1', { [`${P}/public-ip`]: '192.168.77.99' })
    await eventually(() => expect(seen.view()).toEqual({ '10.5.1.0-24': '192.168.77.99' }))
    await manager.holder(config).renew(lease, lease.attrs, log, stopping.signal)
    await eventually(() => expect(seen.view()).toEqual({ '10.5.1.0-24': '192.168.77.1' }))
    expect(lines.filter((line) => line.includes('no longer what weftd wrote'))).toHaveLength(1)
    await api.admin.annotate('node1', { [`${P}/public-ip`]: 'junk', [`${P}/backend-data`]: '{' })
    await eventually(() => expect(lines.join('\n')).toContain('Ignoring bad subnet node: 10.5.1.0-24'))
    await manager.holder(config).renew(lease, lease.attrs, log, stopping.signal)
    expect((await api.admin.node('node1')).metadata?.annotations).toMatchObject(flannels('192.168.77.1'))
    expect(lines.filter((line) => line.includes('no longer what weftd wrote'))).toHaveLength(2)
    expect(seen.error).toBeUndefined()
  })

  it('loses its lease when the node is recreated with another podCIDR, and takes the new one', async () => {
    await api.admin.addNode('node1', '10.5.1.0/24')
    const manager = await managerOf('node1')
    const lease = await obtain(manager, attrs('192.168.77.1'))
    const renew = () => manager.holder(config).renew(lease, lease.attrs, log, stopping.signal)
    await api.admin.removeNode('node1')
    await expect(renew()).rejects.toMatchObject({ code: 'LEASE_LOST', message: 'node "node1" is not there' })
    await api.admin.addNode('node1')
    await expect(renew()).rejects.toMatchObject({ code: 'LEASE_LOST', message: 'node "node1" pod cidr not assigned' })
    await api.admin.givePodCidr('node1', '10.5.7.0/24')
    await expect(renew()).rejects.toMatchObject({ code: 'LEASE_LOST', message: 'node "node1" has 10.5.7.0/24 now' })
    expect((await obtain(manager, lease.attrs)).key).toBe('10.5.7.0-24')
    expect(await api.admin.events()).toContainEqual(expect.objectContaining({ reason: 'PodCIDRChanged' }))
    await api.admin.removeNode('node1')
    await api.admin.addNode('node1', '10.5.7.0/24,fd00:5:0:7::/64')
    expect((await obtain(manager, lease.attrs)).key).toBe('10.5.7.0-24&fd00:5:0:7::-64')
    const message = expect.stringMatching(/fd00:5:0:7::\/64: pods keep their addresses$/) as string
    expect(await api.admin.events()).toContainEqual(expect.objectContaining({ message }))
  })

  it.each([3, 50])('shows each of %i nodes that start simultaneously all others', async (count) => {
    const names = Array.from({ length: count }, (_, at) => `n${at + 1}`)
    setMaxListeners(0, stopping.signal)
    await Promise.all(names.map((name, at) => api.admin.addNode(name, `10.5.${at + 1}.0/24`)))
    const views = await Promise.all(
      names.map(async (name, at) => {
        const manager = await managerOf(name)
        await obtain(manager, attrs(`192.168.77.${at + 1}`))
        return follow(manager)
      }),
    )
    const all = Object.fromEntries(names.map((_, at) => [`10.5.${at + 1}.0-24`, `192.168.77.${at + 1}`]))
    await eventually(() => {
      for (const { view } of views) expect(view()).toEqual(all)
    })
  })

  it("publishes an operator's public IP, and uses an operator's address of the node", async () => {
    await api.admin.addNode('node1', '10.5.1.0/24', {
      [`${P}/public-ip-overwrite`]: '203.0.113.1',
      [`${P}/node-public-ip`]: '198.51.100.1',
    })
    const manager = await managerOf('node1')
    expect(await manager.publicIp(stopping.signal)).toEqual({ ipv4: parseIpv4('198.51.100.1') })
    const own = attrs('192.168.77.1')
    const amended = await manager.amend(own.publicIp, stopping.signal)
    expect(amended).toEqual({ ipv4: parseIpv4('203.0.113.1') })
    await obtain(manager, { ...own, publicIp: amended })
    expect((await api.admin.node('node1')).metadata?.annotations?.[`${P}/public-ip`]).toBe('203.0.113.1')
    await api.admin.annotate('node1', { [`${P}/public-ip-overwrite`]: 'junk' })
    expect(await manager.amend(own.publicIp, stopping.signal)).toEqual(own.publicIp)
    expect(lines.join('\n')).toContain(
      `W An annotation of this node is not an IPv4 address of a host, and is ignored: ${P}/public-ip-overwrite`,
    )
  })

  const dual = (last: number, more: Partial<LeaseAttrs> = {}): LeaseAttrs => ({
    publicIp: { ipv4: parseIpv4(`192.168.77.${last}`)!, ipv6: parseIpv6(`fd77::${last}`)! },
    backendType: 'vxlan',
    backendData: { VNI: 1, VtepMAC: 'aa:bb:cc:dd:ee:04' },
    backendV6Data: { VNI: 1, VtepMAC: 'aa:bb:cc:dd:ee:06' },
    ...more,
  })
  const both = parseNetworkConfig('{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}', {
    areGiven: true,
  })
  const obtainBoth = (manager: SubnetManager, what: LeaseAttrs) =>
    manager.holder(both).obtain(what, {}, log, stopping.signal)

  it.each(['10.5.1.0/24,fd00:5:0:1::/64', 'fd00:5:0:1::/64,10.5.1.0/24'])(
    "takes both podCIDRs of %s, and writes flannel's annotations for both",
    async (podCidrs) => {
      await api.admin.addNode('node1', podCidrs)
      const manager = await managerOf('node1')
      const lease = await obtainBoth(manager, dual(1))
      expect(lease.key).toBe('10.5.1.0-24&fd00:5:0:1::-64')
      const written = await api.admin.node('node1')
      expect(written.metadata?.annotations).toEqual({
        'node.alpha.kubernetes.io/ttl': '0',
        [`${P}/backend-data`]: '{"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:04"}',
        [`${P}/backend-v6-data`]: '{"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:06"}',
        [`${P}/backend-type`]: 'vxlan',
        [`${P}/kube-subnet-manager`]: 'true',
        [`${P}/public-ip`]: '192.168.77.1',
        [`${P}/public-ipv6`]: 'fd77::1',
      })
      expect(await manager.published(stopping.signal)).toEqual(dual(1))
      for (const family of ['IPv4', 'IPv6'])
        expect(lines).toContain(
          `I Creating the node lease for ${family}. This is the n.Spec.PodCIDRs: [${podCidrs.replace(',', ' ')}]`,
        )
      await manager.holder(both).renew(lease, dual(1), log, stopping.signal)
      expect((await api.admin.node('node1')).metadata?.resourceVersion).toBe(written.metadata?.resourceVersion)
      // flannel leaves these annotations, and peers that see them send packets over IPv6.
      await obtain(manager, attrs('192.168.77.1'))
      const annotations = (await api.admin.node('node1')).metadata?.annotations ?? {}
      expect(Object.keys(annotations).filter((name) => name.includes('v6'))).toEqual([])
    },
  )

  it('takes an IPv6-only node', async () => {
    const only6 = parseNetworkConfig('{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}', {
      areGiven: true,
    })
    await api.admin.addNode('node1', 'fd00:5:0:1::/64')
    const manager = await managerOf('node1')
    const what = { publicIp: { ipv6: parseIpv6('fd77::1')! }, backendType: 'host-gw' }
    const lease = await manager.holder(only6).obtain(what, {}, log, stopping.signal)
    expect(lease.key).toBe('0.0.0.0-0&fd00:5:0:1::-64')
    expect((await api.admin.node('node1')).metadata?.annotations).toEqual({
      'node.alpha.kubernetes.io/ttl': '0',
      [`${P}/backend-v6-data`]: 'null',
      [`${P}/backend-type`]: 'host-gw',
      [`${P}/kube-subnet-manager`]: 'true',
      [`${P}/public-ipv6`]: 'fd77::1',
    })
    const seen = follow(manager)
    await eventually(() => expect(seen.view()).toEqual({ '0.0.0.0-0&fd00:5:0:1::-64': 'fd77::1' }))
  })

  it('refuses an IPv6 podCIDR outside the network or without an enabled family, and names a missing one', async () => {
    await api.admin.addNode('outside', '10.5.1.0/24,fd00:6:0:1::/64')
    await expect(obtainBoth(await managerOf('outside'), dual(1))).rejects.toMatchObject({
      code: 'CONFIG',
      message: `subnet "fd00:5::/48" specified in the flannel net config doesn't contain "fd00:6:0:1::/64" IPv6 PodCIDR of the "outside" node`,
      remedy: expect.stringContaining('set IPv6Network'),
    })
    // A podCIDR of a disabled family is ignored.
    expect((await obtain(await managerOf('outside'), attrs('192.168.77.1'))).subnet.ipv4).toBeDefined()
    await api.admin.addNode('only6', 'fd00:5:0:1::/64')
    await expect(obtain(await managerOf('only6'), attrs('192.168.77.1'))).rejects.toMatchObject({
      code: 'CONFIG',
      message: 'node "only6": missing IPv4 address on n.Spec.PodCIDRs',
    })
    await api.admin.addNode('only4', '10.5.4.0/24')
    expect((await obtainBoth(await managerOf('only4'), dual(4))).key).toBe('10.5.4.0-24')
    expect(lines).toContain(
      'W node "only4": missing IPv6 address on n.Spec.PodCIDRs; it is in the network without IPv6',
    )
  })

  it('follows nodes that change, gain or lose one family, and keeps the other family', async () => {
    await api.admin.addNode('node1', '10.5.1.0/24,fd00:5:0:1::/64')
    await api.admin.addNode('node2', '10.5.2.0/24,fd00:5:0:2::/64', flannels('192.168.77.2'))
    const manager = await managerOf('node1')
    await obtainBoth(manager, dual(1))
    const seen = follow(manager)
    const key = '10.5.2.0-24&fd00:5:0:2::-64'
    const peer = (): string => {
      const { publicIp, backendV6Data } = seen.leases.get(key)?.attrs ?? {}
      return `${addressText({ ipv4: publicIp?.ipv4 })} ${addressText({ ipv6: publicIp?.ipv6 })} ${JSON.stringify(backendV6Data)}`
    }
    // The peer has no IPv6 address as long as the node runs with IPv4 only.
    await eventually(() => expect(peer()).toBe('192.168.77.2 0.0.0.0 undefined'))
    await api.admin.annotate('node2', { [`${P}/public-ipv6`]: 'fd77::2' })
    await eventually(() => expect(peer()).toBe('192.168.77.2 fd77::2 undefined'))
    await api.admin.annotate('node2', { [`${P}/backend-v6-data`]: '{"VNI":1}' })
    await eventually(() => expect(peer()).toBe('192.168.77.2 fd77::2 {"VNI":1}'))
    await api.admin.annotate('node2', { [`${P}/public-ip`]: '192.168.77.22' })
    await eventually(() => expect(peer()).toBe('192.168.77.22 fd77::2 {"VNI":1}'))
    await api.admin.annotate('node2', { [`${P}/public-ip`]: null })
    await eventually(() => expect(peer()).toBe('0.0.0.0 fd77::2 {"VNI":1}'))
    expect(lines.filter((line) => line.includes('Ignoring bad'))).toEqual([])
  })

  it("publishes an operator's public IPv6 if the node has IPv6, and uses an operator's IPv6 address of the node", async () => {
    await api.admin.addNode('node1', '10.5.1.0/24,fd00:5:0:1::/64', {
      [`${P}/public-ipv6-overwrite`]: '2001:db8::7',
      [`${P}/node-public-ipv6`]: '2001:db8::1',
    })
    const manager = await managerOf('node1')
    expect(await manager.publicIp(stopping.signal)).toEqual({ ipv6: parseIpv6('2001:db8::1') })
    const { publicIp } = dual(1)
    const amended = await manager.amend(publicIp, stopping.signal)
    expect(amended).toEqual({ ipv4: publicIp.ipv4, ipv6: parseIpv6('2001:db8::7') })
    expect(lines).toEqual([
      `I Overriding public ipv6 with '2001:db8::7' from node annotation '${P}/public-ipv6-overwrite'`,
    ])
    expect(await manager.amend({ ipv4: publicIp.ipv4 }, stopping.signal)).toEqual({ ipv4: publicIp.ipv4 })
    await api.admin.annotate('node1', { [`${P}/public-ipv6-overwrite`]: '192.0.2.1' })
    expect(await manager.amend(publicIp, stopping.signal)).toEqual(publicIp)
    expect(lines.at(-1)).toBe(
      `W An annotation of this node is not an IPv6 address of a host, and is ignored: ${P}/public-ipv6-overwrite is "192.0.2.1"`,
    )
  })

  it('looks up the node of its pod', async () => {
    await api.admin.call('POST', '/api/v1/namespaces', { metadata: { name: 'kube-flannel' } })
    await api.admin.addNode('node1', '10.5.1.0/24')
    const pod = {
      metadata: { name: 'flannel-1' },
      spec: { nodeName: 'node1', containers: [{ name: 'a', image: 'a' }] },
    }
    await api.admin.call('POST', '/api/v1/namespaces/kube-flannel/pods', { apiVersion: 'v1', kind: 'Pod', ...pod })
    const environment = { POD_NAME: 'flannel-1', POD_NAMESPACE: 'kube-flannel' }
    expect((await managerOf('', { environment })).title).toBe('Kubernetes Subnet Manager - node1')
    const absent = managerOf('', { environment: { ...environment, POD_NAME: 'other' } })
    await expect(absent).rejects.toMatchObject({ code: 'STORE', message: 'there is no such pod' })
  })

  it('lists more than one page', async () => {
    // The smallest number that needs a second page.
    const names = Array.from({ length: 501 }, (_, at) => `many${at}`)
    for (let at = 0; at < names.length; at += 50)
      await Promise.all(
        names
          .slice(at, at + 50)
          .map((name, of) =>
            api.admin.addNode(
              name,
              `10.5.${Math.floor((at + of) / 4)}.${((at + of) % 4) * 64}/26`,
              flannels('192.168.77.9'),
            ),
          ),
      )
    const manager = await managerOf('node1')
    const { entries } = await manager.source.list(stopping.signal)
    expect(new Set(entries.map(({ key }) => key)).size).toBe(501)
  })

  it('reads a renewed token and authority from disk', async () => {
    await api.admin.addNode('node1', '10.5.1.0/24', flannels('192.168.77.1'))
    const manager = await managerOf('node1')
    writeFileSync(join(folder, 'token'), 'expired')
    await expect(manager.source.list(stopping.signal)).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      message: expect.stringContaining('GET /api/v1/nodes: 401'),
    })
    writeFileSync(join(folder, 'token'), `${WEFT_TOKEN}\n`)
    expect((await manager.source.list(stopping.signal)).entries).toHaveLength(1)
    writeFileSync(join(folder, 'ca.crt'), 'no certificate')
    await expect(manager.source.list(stopping.signal)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    writeFileSync(join(folder, 'ca.crt'), readFileSync(api.caFile))
    expect((await manager.source.list(stopping.signal)).entries).toHaveLength(1)
  })

  it('reads the network configuration from its file, and waits for a missing file', async () => {
    const manager = await managerOf('node1')
    await expect(manager.config(stopping.signal)).rejects.toMatchObject({
      code: 'CONFIG_MISSING',
      message: expect.stringMatching(/^failed to read net conf: ENOENT.*net-conf\.json'$/),
    })
    writeFileSync(join(folder, 'net-conf.json'), '{"Network":"10.5.0.0/16"}')
    expect(await manager.config(stopping.signal)).toBe('{"Network":"10.5.0.0/16"}')
  })

  it('uses all its rights, and no others', () => {
    expect(api.asked().filter(({ isAllowed }) => !isAllowed)).toEqual([])
    expect([...new Set(api.asked().map(({ what }) => what))].toSorted()).toEqual(
      [
        ...rightsOf(manifestObjects()),
        'get pods', // for POD_NAME
      ].toSorted(),
    )
  })

  it("keeps the known leases while the API server's etcd has no leader, and follows changes afterwards", async ({
    skip,
  }) => {
    skip(_kind !== 'real', 'there is no etcd beneath the small server')
    const { etcd } = api as RealKubeApi
    await api.admin.addNode('node1', '10.5.1.0/24')
    const manager = await managerOf('node1')
    const lease = await obtain(manager, attrs('192.168.77.1'))
    const seen = follow(manager, 1_000)
    await eventually(() => expect(seen.view()).toEqual({ '10.5.1.0-24': '192.168.77.1' }))
    await etcd.kill()
    const renewing = manager.holder(config).renew(lease, lease.attrs, log, stopping.signal)
    await expect(renewing).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    expect(seen.view()).toEqual({ '10.5.1.0-24': '192.168.77.1' })
    await etcd.start()
    await eventually(() => api.admin.addNode('node2', '10.5.2.0/24', flannels('192.168.77.2')))
    await eventually(() => expect(seen.view()).toMatchObject({ '10.5.2.0-24': '192.168.77.2' }))
  })

  // Run this test last, because a real server that has just restarted denies every request for a moment.
  it('continues after the API server was unavailable, and learns of all changes that it missed', async () => {
    await api.admin.addNode('node1', '10.5.1.0/24')
    const manager = await managerOf('node1')
    await obtain(manager, attrs('192.168.77.1'))
    const seen = follow(manager)
    await eventually(() => expect(seen.view()).toEqual({ '10.5.1.0-24': '192.168.77.1' }))
    await api.kill()
    await eventually(() => expect(seen.state.failing).toBe(true))
    expect(seen.view()).toEqual({ '10.5.1.0-24': '192.168.77.1' })
    await api.start()
    await api.admin.addNode('node2', '10.5.2.0/24', flannels('192.168.77.2'))
    await eventually(() => expect(seen.view()).toMatchObject({ '10.5.2.0-24': '192.168.77.2' }))
  })
})

/** The annotations of a flannel with the udp backend, as recorded. */
const flannels = (publicIp: string): Record<string, string> => ({
  [`${P}/backend-data`]: 'null',
  [`${P}/backend-type`]: '',
  [`${P}/kube-subnet-manager`]: 'true',
  [`${P}/public-ip`]: publicIp,
})

/** An operator who sets POD_NAME instead of NODE_NAME must also grant this right, as flannel's role does. */
const RBAC = { apiVersion: 'rbac.authorization.k8s.io/v1', metadata: { name: 'get-pods' } }
const GET_PODS = [
  { ...RBAC, kind: 'ClusterRole', rules: [{ apiGroups: [''], resources: ['pods'], verbs: ['get'] }] },
  {
    ...RBAC,
    kind: 'ClusterRoleBinding',
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'get-pods' },
    subjects: [{ kind: 'ServiceAccount', name: 'flannel', namespace: 'kube-flannel' }],
  },
]

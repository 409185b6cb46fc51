// wireguard-mixed.test.ts - one network in which the kernel carries WireGuard on some hosts and weftd on others; with leases in a
// directory, in etcd, and in the Kubernetes API.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { startEtcd } from '../../lab/etcd.ts'
import { createLab, WIREGUARD_APART, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { openKubeRelay } from '../support/kube-relay.ts'
import { startKubeServer } from '../support/kube-server.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, ...ETCD, 'openssl', 'ping', 'wg', 'wireguard-go')

const PSK = 'MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY='

let lab: Lab | undefined
let ends: (() => Promise<void>)[] = []
afterEach(async () => {
  await lab?.close()
  for (const end of ends.toReversed()) await end()
  ends = []
})

/** Returns the flags of a store for a host, after writing this configuration to it. */
type Store = (host: Host, config: string) => Promise<readonly string[]>

const STORES: Readonly<Record<string, (on: Lab) => Promise<Store>>> = {
  async 'a directory'({ folder }) {
    const leases = join(folder, 'leases')
    mkdirSync(leases)
    return async (_host, config) => {
      writeFileSync(join(leases, 'config'), config)
      return ['--lease-dir', leases]
    }
  },
  async etcd({ id }) {
    const etcd = await startEtcd({ namespace: `${id}-switch`, address: '192.168.77.254' })
    ends.push(() => etcd.close())
    return async (_host, config) => {
      await etcd.ctl('put', '/coreos.com/network/config', config)
      return ['--etcd-endpoints', etcd.endpoint]
    }
  },
  async 'the Kubernetes API'(on) {
    const api = await startKubeServer()
    ends.push(() => api.close())
    const relay = await openKubeRelay(on, api)
    ends.push(() => relay.close())
    for (const [at, { name }] of on.hosts.entries()) await api.admin.addNode(name, `10.5.${at + 1}.0/24`)
    return async (host, config) => {
      const file = join(on.folder, `${host.name}-net-conf.json`)
      writeFileSync(file, config)
      return ['--kube-subnet-mgr', '--kubeconfig-file', relay.kubeconfig, '--net-config-path', file]
    }
  },
}

describe.each([['kernel', 'userspace', 'userspace']])('a network of %s, %s and %s', (...carriers) => {
  it.each(Object.keys(STORES))('carries packets between all hosts, with leases in %s', async (kind) => {
    lab = await createLab({ hosts: carriers.length })
    const store = await STORES[kind]!(lab)
    const daemons: Daemon[] = []
    for (const [at, host] of lab.hosts.entries()) {
      const Backend = { Type: 'wireguard', PSK, DataPath: carriers[at] }
      const daemon = host.startDaemon({
        args: await store(host, JSON.stringify({ Network: '10.5.0.0/16', Backend })),
        env: { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`), NODE_NAME: host.name },
        before: WIREGUARD_APART,
      })
      await daemon.line(/flannel is ready/)
      daemons.push(daemon)
    }
    const pods = []
    for (const host of lab.hosts) pods.push(await host.startPod())
    for (const from of pods) for (const to of pods) if (from !== to) await reach(from.namespace, to.address)
    for (const { lines } of daemons) expect(lines.filter((line) => line.startsWith('E'))).toEqual([])
  })
})

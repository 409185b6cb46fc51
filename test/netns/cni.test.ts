// cni.test.ts - stock flannel's CNI plugin takes our subnet.env, and the containers that it attaches reach each other.

import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { output } from '../../lab/command.ts'
import { startEtcd } from '../../lab/etcd.ts'
import { createLab, type Host } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { answers } from '../support/hosts.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, ...ETCD, 'ping')

/** Where a host keeps CNI's plugins; Debian has flannel's up to version 11 in containernetworking-plugins. */
const FOLDERS = [...(process.env['CNI_PATH'] ?? '').split(':'), '/opt/cni/bin', '/usr/lib/cni'].filter(Boolean)
const folder = FOLDERS.find((path) => existsSync(join(path, 'flannel')))

interface CniResult {
  readonly ips: readonly { readonly address: string; readonly gateway: string }[]
  readonly routes: readonly { readonly dst: string }[]
}

it("flannel's CNI plugin attaches containers by our subnet.env, and they reach each other", async ({ skip }) => {
  skip(folder === undefined, `no plugin named flannel in ${FOLDERS.join(', ')}`)
  const lab = await createLab({ hosts: 2 })
  const etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
  const pods: string[] = []
  try {
    await etcd.ctl('put', '/coreos.com/network/config', '{"Network":"10.5.0.0/16"}')
    const attach = async (host: Host): Promise<CniResult & { readonly pod: string }> => {
      const pod = `${lab.id}-cni-${host.name}`
      await output(['ip', 'netns', 'add', pod])
      pods.push(pod)
      const config = {
        ...{ cniVersion: '0.3.1', name: 'cbr0', type: 'flannel' },
        ...{ subnetFile: host.subnetFile, delegate: { isDefaultGateway: true, hairpinMode: true } },
      }
      const variables = {
        ...{ CNI_COMMAND: 'ADD', CNI_CONTAINERID: pod, CNI_IFNAME: 'eth0' },
        ...{ CNI_NETNS: `/run/netns/${pod}`, CNI_PATH: FOLDERS.join(':') },
      }
      // What the plugins remember stays in this mount namespace.
      const hidden = 'mount -t tmpfs tmpfs /var/lib && exec "$@"'
      const answer = await host.output(
        [
          ...['unshare', '--mount', 'sh', '-c', hidden, 'sh', 'env'],
          ...Object.entries(variables).map(([name, value]) => `${name}=${value}`),
          join(folder!, 'flannel'),
        ],
        { input: JSON.stringify(config) },
      )
      return { ...(JSON.parse(answer) as CniResult), pod }
    }
    const daemons = lab.hosts.map((host, index) =>
      // The plugin masquerades itself where the daemon does not.
      host.startDaemon({ args: ['--etcd-endpoints', etcd.endpoint, ...(index === 0 ? ['--ip-masq'] : [])] }),
    )
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))

    const attached: { pod: string; address: string }[] = []
    for (const host of lab.hosts) {
      const { FLANNEL_SUBNET: subnet = '', FLANNEL_MTU: mtu } = host.subnetEnv()
      const { ips, routes, pod } = await attach(host)
      expect(ips[0]!.gateway).toBe(subnet.split('/')[0])
      expect(ips[0]!.address).toBe(subnet.replace('.1/', '.2/'))
      expect(routes.map(({ dst }) => dst)).toContain('10.5.0.0/16')
      expect(await output(['ip', '-n', pod, 'link', 'show', 'dev', 'eth0'])).toContain(`mtu ${mtu} `)
      attached.push({ pod, address: ips[0]!.address.split('/')[0]! })
    }
    const [a, b] = attached as [(typeof attached)[0], (typeof attached)[0]]
    await reach(a.pod, b.address)
    await answers(a.pod, b.address)
    await answers(b.pod, a.address)
  } finally {
    for (const pod of pods) await output(['ip', 'netns', 'del', pod])
    await lab.close()
    await etcd.close()
  }
})

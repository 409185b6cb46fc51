// switching.test.ts - enables IPv6 in a running Kubernetes cluster and disables it again: with the small server, and with a real one and
// the commands of docs/kubernetes/add-ipv6.md.

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { output } from '../../lab/command.ts'
import { createLab, EVENT_MS, whyNoVxlan, type Host, type Lab } from '../../lab/lab.ts'
import { ADMIN_TOKEN, kubeconfigText, type KubeApi } from '../support/kube-admin.ts'
import { allow, startKubeApiserver } from '../support/kube-apiserver.ts'
import { manifestObjects } from '../support/kube-manifest.ts'
import { openKubeRelay, type KubeRelay } from '../support/kube-relay.ts'
import { startKubeServer } from '../support/kube-server.ts'
import { manualLines } from '../support/manual.ts'
import { HOSTS, KUBE_APISERVER, lackOf, needs } from '../support/needs.ts'
import { switchOnAndOff, VXLAN } from '../support/switching.ts'

needs(HOSTS, 'openssl', 'ping')

const P = 'flannel.alpha.coreos.com'
const ADD_IPV6 = 'docs/kubernetes/add-ipv6.md'

let lab: Lab | undefined
let api: KubeApi | undefined
let relay: KubeRelay | undefined
afterEach(async () => {
  await lab?.close()
  await relay?.close()
  await api?.close()
  lab = api = relay = undefined
})

/** The pod CIDRs of a node, and the one that is added. */
const rangeOf = (host: Host): string => `10.5.${host.address.at(-1)}.0/24`
const range6Of = (host: Host): string => `fd00:5:0:${host.address.at(-1)}::/64`

describe('IPv6 is enabled in a running cluster and disabled again', () => {
  it.for(['small', 'real'])('on the %s server', async (kind, { skip }) => {
    const why = (await whyNoVxlan()) ?? (kind === 'real' ? lackOf(KUBE_APISERVER, 'kubectl', 'jq') : undefined)
    skip(why !== undefined, why)
    lab = await createLab({ hosts: 3, families: ['ipv4', 'ipv6'] })
    const { folder, hosts } = lab
    api = await (kind === 'real' ? startKubeApiserver() : startKubeServer())
    const { admin } = api
    if (kind === 'real') await allow(api)
    relay = await openKubeRelay(lab, api)
    const { kubeconfig } = relay
    const netConf = join(folder, 'net-conf.json')
    for (const host of hosts) await admin.addNode(host.name, rangeOf(host))

    writeFileSync(join(folder, 'admin'), kubeconfigText(api.url, api.caFile, ADMIN_TOKEN))
    const [, range, on, , look, off] = manualLines(ADD_IPV6, '## Add IPv6', '## Remove IPv6')
    const sh = (script: string, env: Readonly<Record<string, string>>): Promise<string> =>
      output(
        [
          'env',
          `KUBECONFIG=${join(folder, 'admin')}`,
          ...Object.entries(env).map(([name, value]) => `${name}=${value}`),
          'bash',
          '-ec',
          script,
        ],
        { timeoutMs: EVENT_MS },
      )
    const configMap = '/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg'
    let isMade = false
    /** The commands of the manual change the ConfigMap's configuration to this one. */
    async function configureReal(config: { readonly EnableIPv6?: boolean; readonly IPv6Network?: string }) {
      if (isMade) await sh(config.EnableIPv6 ? on! : off!, { IPV6_NETWORK: config.IPv6Network ?? '' })
      else {
        for (const object of manifestObjects().filter((each) => /^(Namespace|ConfigMap)$/.test(each.kind))) {
          const data = { 'net-conf.json': JSON.stringify(config), 'cni-conf.json': '{}' }
          await admin.create({ ...object, ...(object.kind === 'ConfigMap' ? { data } : {}) })
        }
        isMade = true
      }
      const { data } = (await admin.call('GET', configMap)).body as { data: Record<string, string> }
      expect(JSON.parse(data['net-conf.json']!)).toEqual(config)
      writeFileSync(netConf, data['net-conf.json']!)
    }

    await switchOnAndOff({
      hosts,
      backend: VXLAN,
      configure: (config) => (kind === 'real' ? configureReal(config) : writeFileSync(netConf, JSON.stringify(config))),
      async prepare(host, daemons) {
        if (kind === 'real') await sh(range!, { NODE: host.name, RANGE: range6Of(host) })
        else {
          const { metadata } = await admin.node(host.name)
          await admin.removeNode(host.name)
          await admin.addNode(host.name, `${rangeOf(host)},${range6Of(host)}`, metadata?.annotations)
        }
        // A watch delivers in order: a node that has received a later node has received this change too.
        const number = host.address.at(-1)
        const later = `192.168.77.10${number}`
        await admin.addNode(`later${number}`, `10.5.10${number}.0/24`, {
          [`${P}/kube-subnet-manager`]: 'true',
          [`${P}/public-ip`]: later,
          [`${P}/backend-type`]: 'vxlan',
          [`${P}/backend-data`]: `{"VNI":1,"VtepMAC":"02:00:00:00:01:0${number}"}`,
        })
        await Promise.all(
          daemons.map((daemon) => daemon.line(new RegExp(`PublicIP: ${later.replaceAll('.', String.raw`\.`)},`))),
        )
      },
      start: (host) =>
        host.startDaemon({
          args: ['--kube-subnet-mgr', '--kubeconfig-file', kubeconfig, '--net-config-path', netConf],
          env: { NODE_NAME: host.name },
        }),
      async published(host) {
        const { metadata, spec } = await admin.node(host.name)
        const { [`${P}/public-ip`]: ipv4, [`${P}/public-ipv6`]: ipv6 } = metadata?.annotations ?? {}
        if (kind === 'real' && ipv6 !== undefined)
          expect(await sh(look!, { NODE: host.name })).toContain(`"${P}/public-ipv6":"${ipv6}"`)
        const ranges = spec?.podCIDRs ?? []
        // A node whose IPv6 is disabled again keeps its pod CIDR.
        return [...ranges.slice(0, ipv6 === undefined ? 1 : 2), ...[ipv4, ipv6].filter((each) => each !== undefined)]
      },
    })
    expect(api.asked().filter(({ isAllowed }) => !isAllowed)).toEqual([])
  })
})

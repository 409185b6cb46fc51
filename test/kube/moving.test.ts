// moving.test.ts - runs the commands of docs/kubernetes/from-flannel.md: from flannel to weft and back, node by node, with a real API
// server.
//
// kubectl runs the manual's own commands. The test plays the rest of a cluster: a controller that creates a pod on each node, and a kubelet
// that runs the pod's container as a daemon on a host made of a namespace. There is no program of flannel; a pod with its image only writes
// its recorded annotations.

import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { stringify } from 'yaml'
import { output } from '../../lab/command.ts'
import { createLab, EVENT_MS, packageRoot, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { answers } from '../support/hosts.ts'
import { ADMIN_TOKEN, kubeconfigText } from '../support/kube-admin.ts'
import { startKubeApiserver, type RealKubeApi } from '../support/kube-apiserver.ts'
import { manifestObjects, type KubeObject } from '../support/kube-manifest.ts'
import { openKubeRelay, type KubeRelay } from '../support/kube-relay.ts'
import { manualLines } from '../support/manual.ts'
import { HOSTS, KUBE_APISERVER, needs } from '../support/needs.ts'

const P = 'flannel.alpha.coreos.com'
const { version } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')) as { version: string }
/** The tag in the manifest is the version; release:cut writes both. */
const IMAGE = `registry.example/weft:${version}`
const PODS = '/api/v1/namespaces/kube-flannel/pods'
const macOf = (host: Host): string => `02:00:00:00:00:0${host.address.at(-1)}`

interface Template {
  readonly metadata: { readonly labels: Record<string, string> }
  readonly spec: {
    readonly containers: readonly { name: string; image: string; args: string[]; env: { name: string }[] }[]
  }
}
interface Pod extends KubeObject {
  readonly metadata: KubeObject['metadata'] & { readonly uid: string }
  readonly spec: Template['spec'] & { readonly nodeName: string }
}

const blocks = manualLines('docs/kubernetes/from-flannel.md', '## From flannel to weft', '## And back')

describe('docs/kubernetes/from-flannel.md', () => {
  needs(KUBE_APISERVER, HOSTS, 'openssl', 'iptables', 'ping', 'kubectl', 'jq')
  let lab: Lab | undefined
  let api: RealKubeApi | undefined
  let relay: KubeRelay | undefined
  afterEach(async () => {
    await lab?.close()
    await relay?.close()
    await api?.close()
    lab = api = relay = undefined
  })

  it('moves a cluster in and out', async () => {
    lab = await createLab({ hosts: 2 })
    const { hosts, folder } = lab
    const [a, b] = hosts as [Host, Host]
    api = await startKubeApiserver()
    const { admin } = api
    relay = await openKubeRelay(lab, api)
    const { kubeconfig } = relay

    // The folder in which the manual is followed, with weft's manifest for this cluster and the manifest with which flannel was installed.
    const work = join(folder, 'work')
    mkdirSync(work)
    cpSync(join(packageRoot, 'deploy/kubernetes'), join(work, 'deploy/kubernetes'), { recursive: true })
    const mine = (path: string, from: string, to: string): void => {
      const text = readFileSync(join(work, path), 'utf8')
      expect(text).toContain(from)
      writeFileSync(join(work, path), text.replaceAll(from, to))
    }
    mine('deploy/kubernetes/weft.yaml', '10.244.0.0/16', '10.5.0.0/16')
    mine('deploy/kubernetes/weft.yaml', SURGE, '') // the real server has version 1.20, which does not know maxSurge
    mine('deploy/kubernetes/kustomization.yaml', 'newName: weft', 'newName: registry.example/weft')
    writeFileSync(join(work, 'kube-flannel.yml'), flannelManifest())
    writeFileSync(join(work, 'kubeconfig'), kubeconfigText(api.url, api.caFile, ADMIN_TOKEN))
    const sh = (script: string, node = ''): Promise<string> =>
      output(
        [
          'env',
          '-C',
          work,
          `KUBECONFIG=${join(work, 'kubeconfig')}`,
          `IMAGE=${IMAGE}`,
          `NODE=${node}`,
          'bash',
          '-ec',
          script,
        ],
        { timeoutMs: EVENT_MS },
      )

    // The state that flannel left: it is installed, and each node has its annotations.
    await sh('kubectl apply -f kube-flannel.yml')
    const published = (host: Host): Record<string, string> => ({
      [`${P}/backend-data`]: `{"VNI":1,"VtepMAC":"${macOf(host)}"}`,
      [`${P}/backend-type`]: 'vxlan',
      [`${P}/kube-subnet-manager`]: 'true',
      [`${P}/public-ip`]: host.address,
    })
    for (const [at, host] of hosts.entries()) await admin.addNode(host.name, `10.5.${at + 1}.0/24`, published(host))

    const daemons = new Map<string, Daemon>()
    const images = new Map<string, string>()
    /** Plays the controller and kubelet: creates a pod on each node without one, and runs its container. */
    async function look(): Promise<void> {
      const daemonSet = await admin.call('GET', '/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds')
      const { template } = (daemonSet.body as { spec: { template: Template } }).spec
      const pods = ((await admin.call('GET', PODS)).body as { items: Pod[] }).items
      for (const host of hosts) {
        if (pods.some(({ spec }) => spec.nodeName === host.name)) continue
        await daemons.get(host.name)?.stop()
        daemons.delete(host.name)
        const [container] = template.spec.containers
        const spec = {
          ...template.spec,
          nodeName: host.name,
          terminationGracePeriodSeconds: 0,
          priorityClassName: undefined,
        }
        const metadata = { generateName: 'kube-flannel-ds-', labels: template.metadata.labels }
        const made = await admin.call('POST', PODS, { apiVersion: 'v1', kind: 'Pod', metadata, spec })
        const { name } = (made.body as Pod).metadata
        expect([made.status, name]).toEqual([201, expect.stringContaining('kube-flannel-ds-')])
        images.set(host.name, container!.image)
        if (container!.image === IMAGE) daemons.set(host.name, await run(host, container!, name))
        const ready = { status: { phase: 'Running', conditions: [{ type: 'Ready', status: 'True' }] } }
        const set = await admin.call('PATCH', `${PODS}/${name}/status`, ready, 'application/strategic-merge-patch+json')
        expect(set.status).toBe(200)
      }
    }
    /** Runs the container with the ConfigMap mounted; it is ready when its probe succeeds. */
    async function run(host: Host, container: Template['spec']['containers'][0], pod: string): Promise<Daemon> {
      const map = await admin.call('GET', '/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg')
      const netConf = join(dirname(host.subnetFile), 'net-conf.json')
      writeFileSync(netConf, (map.body as { data: Record<string, string> }).data['net-conf.json']!)
      const values: Record<string, string> = { NODE_NAME: host.name, POD_NAME: pod, POD_NAMESPACE: 'kube-flannel' }
      const daemon = host.startDaemon({
        args: [...container.args, '--kubeconfig-file', kubeconfig, '--net-config-path', netConf],
        iface: [],
        env: Object.fromEntries(container.env.flatMap(({ name }) => (values[name] ? [[name, values[name]]] : []))),
      })
      await daemon.line(/flannel is ready/)
      return daemon
    }
    const over = new AbortController()
    const cluster = (async () => {
      while (!over.signal.aborted) {
        await look()
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
    })()
    cluster.catch(() => {})
    const step = async (block: string | undefined, node?: Host): Promise<string> => {
      const said = await Promise.race([sh(block!, node?.name), cluster.then(() => '')])
      return said
    }
    await eventually(() => expect(images.size).toBe(2))

    const [hold, replace, inspect, release, own, back] = blocks
    expect(blocks).toHaveLength(6)
    await step(hold)
    expect([...images.values()]).toEqual(Array(2).fill(expect.stringContaining('flannel:'))) // nothing has changed yet
    const same = async (host: Host): Promise<void> => {
      expect((await admin.node(host.name)).metadata?.annotations).toEqual({
        'node.alpha.kubernetes.io/ttl': '0',
        ...published(host),
      })
      expect(await host.output(['ip', 'link', 'show', 'flannel.1'])).toContain(macOf(host))
    }
    for (const host of [a, b]) {
      await step(replace, host)
      expect([images.get(host.name), daemons.has(host.name)]).toEqual([IMAGE, true])
      expect(await step(inspect, host)).toContain(host.address)
      await same(host)
    }
    const [podA, podB] = [await a.startPod(), await b.startPod()]
    await reach(podA.namespace, podB.address)
    await reach(podB.namespace, podA.address)

    // weft's own manifest, with its rights and variables.
    await step(release)
    expect(await step(own)).toMatch(/daemonset.apps\/kube-flannel-ds configured/)
    for (const host of [a, b]) {
      await step(replace, host)
      expect([images.get(host.name), daemons.has(host.name)]).toEqual([IMAGE, true])
    }
    await reach(podA.namespace, podB.address)
    const rights = await admin.call('GET', '/apis/rbac.authorization.k8s.io/v1/clusterroles/flannel')
    const mineNow = manifestObjects().find(({ kind }) => kind === 'ClusterRole') as unknown as { rules: unknown }
    expect((rights.body as { rules: unknown }).rules).toEqual(mineNow.rules)
    expect(api.asked().filter(({ isAllowed }) => !isAllowed)).toEqual([])

    // Now follow the manual back from weft to flannel.
    await step(back)
    const daemonSet = await admin.call('GET', '/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds')
    const spec = (daemonSet.body as { spec: { updateStrategy: unknown; template: Template } }).spec
    expect(spec.updateStrategy).toMatchObject({ type: 'OnDelete' })
    expect(spec.template.spec.containers[0]).not.toHaveProperty('startupProbe')
    await step(replace, a)
    expect([images.get(a.name), daemons.has(a.name), daemons.has(b.name)]).toEqual([FLANNEL, false, true])
    await same(a)
    // The kernel's device keeps working until flannel takes it over.
    await answers(podA.namespace, podB.address)
    over.abort()
    await cluster
  })
})

/** A line of the manifest that needs Kubernetes 1.22. */
const SURGE = '    rollingUpdate: { maxSurge: 1, maxUnavailable: 0 }\n'

const FLANNEL = 'ghcr.io/flannel-io/flannel:v0.28.9'

/** Returns the manifest of flannel v0.28.9, with its names, rights, variables and capabilities. */
function flannelManifest(): string {
  return manifestObjects()
    .filter(({ metadata }) => metadata.name !== 'flannel-events')
    .map((object) => {
      const isWefts = (key: string, value: unknown): boolean =>
        ['updateStrategy', 'minReadySeconds', 'startupProbe'].includes(key) ||
        (value as { name?: unknown } | null)?.name === 'FLANNELD_STATUS_SOCKET'
      const text = JSON.stringify(object, (key, value: unknown) => {
        if (Array.isArray(value)) return value.filter((each) => !isWefts('', each))
        return isWefts(key, value) ? undefined : value
      })
        .replaceAll(/"weft:[\d.]+"/g, `"${FLANNEL}"`)
        .replaceAll('10.244.0.0/16', '10.5.0.0/16')
        .replace(
          '{"name":"NODE_NAME","valueFrom":{"fieldRef":{"fieldPath":"spec.nodeName"}}}',
          ['name', 'namespace']
            .map(
              (field) =>
                `{"name":"POD_${field.toUpperCase()}","valueFrom":{"fieldRef":{"fieldPath":"metadata.${field}"}}}`,
            )
            .join(),
        )
        .replace('"add":["NET_ADMIN"]', '"add":["NET_ADMIN","NET_RAW"]')
        .replace(
          '"resources":["nodes"],"verbs":["get","list","watch"]',
          '"resources":["pods","nodes","namespaces"],"verbs":["get","list","watch"]',
        )
      return stringify(JSON.parse(text))
    })
    .join('---\n')
}

// metrics.test.ts - Prometheus scrapes three daemons with the PodMonitor's configuration, and promtool accepts the metrics and the alerts.
// test/kube/alerts.test.ts checks when each alert fires.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { parse } from 'yaml'
import { execute } from '../../lab/command.ts'
import { createLab, packageRoot, type Host, type Lab } from '../../lab/lab.ts'
import { eventually } from '../support/event.ts'
import { subnetOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

const lacks = needs(HOSTS, 'prometheus', 'promtool', 'curl')

let lab: Lab
let hosts: readonly Host[]
beforeAll(async () => {
  if (lacks) return
  lab = await createLab({ hosts: 3 })
  hosts = lab.hosts
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16"}')
  const args = ['--lease-dir', leases, '--probe-interval', '1', '--healthz-port', '8081', '--status-ip', '0.0.0.0']
  const daemons = hosts.map((host) => host.startDaemon({ args }))
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
})
afterAll(() => lab?.close())

it('has metrics that promtool accepts', async () => {
  const [first] = hosts as [Host]
  const input = await first.output(['curl', '-sS', 'http://127.0.0.1:8081/metrics'])
  expect(await execute(['promtool', 'check', 'metrics'], { input })).toMatchObject({ code: 0, stdout: '', stderr: '' })
})

it('has alerts that promtool can read', async () => {
  const file = join(packageRoot, 'deploy/prometheus/weft.rules.yml')
  expect(await execute(['promtool', 'check', 'rules', file])).toMatchObject({ code: 0 })
})

/** Returns the PodMonitor's relabelings in Prometheus's form, after those that the operator adds (prometheus-operator, promcfg.go). */
function relabelings(): string {
  interface Relabeling {
    readonly sourceLabels?: readonly string[]
    readonly targetLabel?: string
    readonly replacement?: string
    readonly regex?: string
    readonly action?: string
  }
  const monitor = parse(readFileSync(join(packageRoot, 'deploy/prometheus/podmonitor.yml'), 'utf8')) as {
    spec: { jobLabel?: string; podMetricsEndpoints: [{ port?: string; relabelings: Relabeling[] }] }
  }
  const [{ port, relabelings: given }] = monitor.spec.podMetricsEndpoints
  expect([monitor.spec.jobLabel, port]).toEqual([undefined, undefined])
  const own = [
    { source_labels: ['__meta_kubernetes_namespace'], target_label: 'namespace' },
    { source_labels: ['__meta_kubernetes_pod_container_name'], target_label: 'container' },
    { source_labels: ['__meta_kubernetes_pod_name'], target_label: 'pod' },
    { target_label: 'job', replacement: 'kube-flannel/weftd' },
  ]
  const words: Readonly<Record<string, string>> = { sourceLabels: 'source_labels', targetLabel: 'target_label' }
  const theirs = given.map((each) =>
    Object.fromEntries(Object.entries(each).map(([name, value]) => [words[name] ?? name, value])),
  )
  return JSON.stringify([...own, ...theirs])
}

it('is scraped by Prometheus, whose alerts report a killed peer', async () => {
  const [first, , third] = hosts as [Host, Host, Host]
  const folder = join(lab.folder, 'prometheus')
  mkdirSync(folder)
  // A container without a port is a target too, and so is an init container.
  const targets = hosts.flatMap(({ address, name }) =>
    ['kube-flannel', 'install-cni'].map((container) => {
      const pod = { __meta_kubernetes_pod_name: `kube-flannel-ds-${name}`, __meta_kubernetes_pod_node_name: name }
      const meta = {
        ...pod,
        __meta_kubernetes_pod_ip: address,
        __meta_kubernetes_namespace: 'kube-flannel',
        __meta_kubernetes_pod_container_name: container,
      }
      return { targets: [address], labels: meta }
    }),
  )
  const config = join(folder, 'prometheus.yml')
  writeFileSync(
    config,
    [
      'global: { scrape_interval: 1s, evaluation_interval: 1s }',
      'scrape_configs:',
      `  - { job_name: podMonitor/kube-flannel/weftd/0, static_configs: ${JSON.stringify(targets)}, relabel_configs: ${relabelings()} }`,
      `rule_files: ['${join(packageRoot, 'deploy/prometheus/weft.rules.yml')}']`,
    ].join('\n'),
  )
  first.spawn([
    'prometheus',
    `--config.file=${config}`,
    `--storage.tsdb.path=${folder}/data`,
    '--web.listen-address=127.0.0.1:9090',
  ])
  const series = async (query: string) => {
    const url = `http://127.0.0.1:9090/api/v1/query?query=${encodeURIComponent(query)}`
    const { data } = JSON.parse(await first.output(['curl', '-sS', url])) as {
      data: { result: { metric: Record<string, string>; value: [number, string] }[] }
    }
    return data.result
  }
  const ask = async (query: string): Promise<Record<string, string>> =>
    Object.fromEntries((await series(query)).map(({ metric, value }) => [metric['instance']!, value[1]]))
  const all = (value: string): Record<string, string> => Object.fromEntries(hosts.map(({ name }) => [name, value]))
  await eventually(async () => expect(await ask('weft_peers_answering')).toEqual(all('2')), { everyMs: 500 })
  expect(await ask('weft_network_whole_ratio')).toEqual(all('1'))
  const [up] = await series(`up{instance="${first.name}"}`)
  expect(up!.metric).toEqual({ __name__: 'up', job: 'weftd', instance: first.name, namespace: 'kube-flannel' })
  await third.output(['iptables', '-I', 'INPUT', '-p', 'udp', '--dport', '8285', '-j', 'DROP'])
  const expected = { ...all('0.5'), [third.name]: '0' }
  await eventually(async () => expect(await ask('weft_network_whole_ratio')).toEqual(expected), { everyMs: 500 })
  // One cause is one alert, although three nodes report it.
  const isNamed = async (): Promise<void> => {
    const [alert, ...others] = await series('ALERTS')
    expect(others).toEqual([])
    expect(alert!.metric).toMatchObject({ alertname: 'WeftNodeUnreached', job: 'weftd', peer: subnetOf(third) })
  }
  await eventually(isNamed, { everyMs: 500 })
})

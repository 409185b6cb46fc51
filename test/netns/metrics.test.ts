// metrics.test.ts - Prometheus itself scrapes three daemons, and its promtool has nothing against metrics, alerts and their tests.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { execute } from '../../lab/command.ts'
import { createLab, packageRoot, type Host, type Lab } from '../../lab/lab.ts'
import { eventually } from '../support/event.ts'
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

it('has metrics that promtool has nothing against', async () => {
  const [first] = hosts as [Host]
  const input = await first.output(['curl', '-sS', 'http://127.0.0.1:8081/metrics'])
  expect(await execute(['promtool', 'check', 'metrics'], { input })).toMatchObject({ code: 0, stdout: '', stderr: '' })
})

it('has alerts that promtool can read, and that go off when they are to', async () => {
  const folder = join(packageRoot, 'deploy/prometheus')
  expect(await execute(['promtool', 'check', 'rules', join(folder, 'weft.rules.yml')])).toMatchObject({ code: 0 })
  const tried = await execute(['promtool', 'test', 'rules', join(packageRoot, 'test/support/weft.rules.test.yml')])
  expect([tried.code, tried.stdout]).toEqual([0, expect.stringContaining('SUCCESS')])
})

it('is scraped by Prometheus, whose alerts find that a peer was killed', async () => {
  const [first, , third] = hosts as [Host, Host, Host]
  const folder = join(lab.folder, 'prometheus')
  mkdirSync(folder)
  const targets = hosts.map(({ address }) => `'${address}:8081'`).join()
  const config = join(folder, 'prometheus.yml')
  writeFileSync(
    config,
    [
      ...['global: { scrape_interval: 1s, evaluation_interval: 1s }', 'scrape_configs:'],
      `  - { job_name: weftd, static_configs: [{ targets: [${targets}] }] }`,
      `rule_files: ['${join(packageRoot, 'deploy/prometheus/weft.rules.yml')}']`,
    ].join('\n'),
  )
  first.spawn([
    'prometheus',
    `--config.file=${config}`,
    `--storage.tsdb.path=${folder}/data`,
    '--web.listen-address=127.0.0.1:9090',
  ])
  const ask = async (query: string): Promise<Record<string, string>> => {
    const url = `http://127.0.0.1:9090/api/v1/query?query=${encodeURIComponent(query)}`
    const { data } = JSON.parse(await first.output(['curl', '-sS', url])) as {
      data: { result: { metric: Record<string, string>; value: [number, string] }[] }
    }
    return Object.fromEntries(
      data.result.map(({ metric, value }) => [metric['instance']!.replace(':8081', ''), value[1]]),
    )
  }
  const all = (value: string): Record<string, string> =>
    Object.fromEntries(hosts.map(({ address }) => [address, value]))
  await eventually(async () => expect(await ask('weft_peers_answering')).toEqual(all('2')), { everyMs: 500 })
  expect(await ask('weft_network_whole_ratio')).toEqual(all('1'))
  await third.output(['iptables', '-I', 'INPUT', '-p', 'udp', '--dport', '8285', '-j', 'DROP'])
  const expected = { ...all('0.5'), [third.address]: '0' }
  await eventually(async () => expect(await ask('weft_network_whole_ratio')).toEqual(expected), { everyMs: 500 })
  await eventually(
    async () => expect(Object.keys(await ask('ALERTS{alertname="WeftPeersUnreached"}'))).toHaveLength(3),
    {
      everyMs: 500,
    },
  )
})

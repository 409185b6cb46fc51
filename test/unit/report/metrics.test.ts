// metrics.test.ts - the metrics of a status; docs/metrics.md has every metric, and rules and dashboards use no other.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'
import { formatMetrics, METRICS, MOST_PEERS } from '../../../src/report/metrics.ts'
import { countPeers, startingReport, STATUS_SCHEMA, type Status } from '../../../src/report/status.ts'
import { dualPeer, silentSide, soundDual, soundPeer, soundStatus } from '../../support/facts.ts'
import { peerWith, statusWith } from '../../support/page-status.ts'
import { beginningWith } from '../../support/snapshot.ts'

const linesOf = async (status: Status): Promise<string[]> =>
  (await formatMetrics(status)).body.split('\n').filter((line) => line !== '' && !line.startsWith('#'))
const read = (path: string): string => readFileSync(join(packageRoot, path), 'utf8')
const counters = { tx_packets: 7, tx_bytes: 700, rx_packets: 5, rx_bytes: 500, tx_drop_ttl: 0, rx_drop_socket_full: 3 }

it('reports the status in base units, and drops by reason', async () => {
  const status = { ...soundStatus, dataPath: { ...soundStatus.dataPath!, counters } }
  const { type, body } = await formatMetrics(status)
  expect(type).toMatch(/^text\/plain; version=0\.0\.4/)
  expect(body).toContain(
    '# HELP weft_peers_stored The number of other nodes that have a lease in the store (etcd, a lease directory or the Kubernetes API).\n# TYPE weft_peers_stored gauge\n',
  )
  expect(await linesOf(status)).toEqual(
    expect.arrayContaining([
      'weft_info{version="1",backend="udp",engine="native",subnet="10.5.1.0/24"} 1',
      'weft_working 1',
      'weft_packets_total{direction="transmit"} 7',
      'weft_bytes_total{direction="receive"} 500',
      'weft_dropped_packets_total{direction="transmit",reason="ttl"} 0',
      'weft_dropped_packets_total{direction="receive",reason="socket_full"} 3',
      'weft_network_whole_ratio 1',
      'weft_peer_round_trip_seconds{peer="10.5.2.0/24"} 0.001',
      `weft_lease_expiry_timestamp_seconds ${Date.parse(status.lease!.expiresAt!) / 1000}`,
      'weft_lease_renew_margin_seconds 3600',
      `weft_store_last_comparison_timestamp_seconds ${Date.parse(status.at) / 1000 - 5}`,
    ]),
  )
})

it('reports the last handshake with a peer and the number of later attempts, if they are known', async () => {
  const none = { ageSeconds: null, failure: null, stale: 0, unconfirmed: 0, txBytes: 0, rxBytes: 0, publicKey: 'K' }
  const sessions = [
    { ...none, handshakeSecondsAgo: 40, attempts: 3 },
    { ...none, handshakeSecondsAgo: null, attempts: null },
    null,
  ]
  const list = sessions.map((session, at) => ({ ...soundPeer, session, subnet: `10.5.${at}.0/24` }))
  const lines = await linesOf({ ...soundStatus, peers: countPeers(list, 10) })
  expect(lines.filter((line) => line.includes('handshake'))).toEqual([
    `weft_peer_last_handshake_timestamp_seconds{peer="10.5.0.0/24"} ${Date.parse(soundStatus.at) / 1000 - 40}`,
    'weft_peer_handshake_attempts{peer="10.5.0.0/24"} 3',
  ])
})

it('omits unknown values', async () => {
  const daemon = { ...soundStatus.daemon, startedAt: soundStatus.at }
  const lines = await linesOf({
    ...startingReport('etcd', beginningWith('waiting')),
    schema: STATUS_SCHEMA,
    at: soundStatus.at,
    daemon,
    events: [],
  })
  expect(lines.map((line) => line.replace(/[ {].*/, ''))).toEqual([
    'weft_info',
    'weft_working',
    ...Array<string>(5).fill('weft_state'),
    ...Array<string>(8).fill('weft_impaired'),
    'weft_repairs_total',
    'weft_time_seconds',
    'process_start_time_seconds',
    'process_cpu_seconds_total',
    'process_resident_memory_bytes',
  ])
})

it('reports peers by family in a dual-stack network, and by their worse family without the label', async () => {
  const list = [dualPeer({}, silentSide), { ...dualPeer({ state: 'stored' }), subnet: '10.5.3.0/24' }]
  const lines = await linesOf({ ...soundDual.status, peers: countPeers(list, 10) })
  expect(lines.filter((line) => /peers?_(family|answering|loss)|family_peers/.test(line))).toEqual([
    'weft_peers_answering 0',
    'weft_peer_answering{peer="10.5.2.0/24"} 0',
    'weft_peer_answering{peer="10.5.3.0/24"} 0',
    'weft_peer_loss_ratio{peer="10.5.2.0/24"} 1',
    'weft_peer_loss_ratio{peer="10.5.3.0/24"} 0',
    'weft_family_peers_programmed{family="ipv4"} 1',
    'weft_family_peers_programmed{family="ipv6"} 2',
    'weft_family_peers_probed{family="ipv4"} 1',
    'weft_family_peers_probed{family="ipv6"} 2',
    'weft_family_peers_answering{family="ipv4"} 1',
    'weft_family_peers_answering{family="ipv6"} 1',
    'weft_peer_family_answering{peer="10.5.2.0/24",family="ipv4"} 1',
    'weft_peer_family_answering{peer="10.5.3.0/24",family="ipv4"} 0',
    'weft_peer_family_answering{peer="10.5.2.0/24",family="ipv6"} 0',
    'weft_peer_family_answering{peer="10.5.3.0/24",family="ipv6"} 1',
    'weft_peer_family_round_trip_seconds{peer="10.5.2.0/24",family="ipv4"} 0.001',
    'weft_peer_family_round_trip_seconds{peer="10.5.3.0/24",family="ipv4"} 0.001',
    'weft_peer_family_round_trip_seconds{peer="10.5.3.0/24",family="ipv6"} 0.001',
    'weft_peer_family_loss_ratio{peer="10.5.2.0/24",family="ipv4"} 0',
    'weft_peer_family_loss_ratio{peer="10.5.3.0/24",family="ipv4"} 0',
    'weft_peer_family_loss_ratio{peer="10.5.2.0/24",family="ipv6"} 1',
    'weft_peer_family_loss_ratio{peer="10.5.3.0/24",family="ipv6"} 0',
  ])
  const unprobed = await linesOf({ ...soundDual.status, peers: countPeers(list, null) })
  expect(unprobed.filter((line) => /family_peers/.test(line))).toHaveLength(2)
  expect((await linesOf(soundStatus)).filter((line) => /family(?!"} 0)/.test(line))).toEqual([])
})

it('omits the metrics of single peers if there are very many peers', async () => {
  const many = (count: number): Status => ({
    ...soundStatus,
    peers: countPeers(
      Array.from({ length: count }, (_, at) => ({ ...soundPeer, subnet: `10.5.${at}.0/24` })),
      10,
    ),
  })
  expect((await linesOf(many(MOST_PEERS))).filter((line) => line.includes('{peer=')).length).toBeGreaterThan(MOST_PEERS)
  const lines = await linesOf(many(MOST_PEERS + 1))
  expect(lines.filter((line) => line.includes('{peer='))).toEqual([])
  expect(lines).toContain(`weft_peers_answering ${MOST_PEERS + 1}`)
})

it('documents each metric in docs/metrics.md with the same text', () => {
  const rows = METRICS.map(({ name, type, help }) => `| \`${name}\` | ${type} | ${help} |`)
  expect(
    read('docs/metrics.md')
      .split('\n')
      .filter((line) => line.startsWith('| `')),
  ).toEqual(rows)
})

it.each(['deploy/grafana', 'deploy/prometheus'])('uses only existing metrics in %s', (folder) => {
  const known = new Set(METRICS.map(({ name }) => name))
  for (const file of readdirSync(join(packageRoot, folder))) {
    const named = read(join(folder, file)).match(/\b(weft|process)_[a-z_]+\b/g) ?? []
    expect([file, named.filter((name) => !known.has(name))]).toEqual([file, []])
  }
})

it('shows only the chosen job and nodes in each panel of the dashboard, because several jobs may have nodes with the same name', () => {
  const { panels } = JSON.parse(read('deploy/grafana/weft.json')) as {
    panels: readonly { readonly targets: readonly { readonly expr: string }[] }[]
  }
  const queries = panels.flatMap(({ targets }) => targets).map(({ expr }) => expr)
  expect(queries.length).toBeGreaterThan(10)
  for (const query of queries) {
    const names = query.match(/\b(?:(?:weft|process)_[a-z_]+|up)\b/g) ?? []
    const chosen = query.match(/\b(?:(?:weft|process)_[a-z_]+|up)\{job="\$job",instance=~"\$instance"/g) ?? []
    expect([query, chosen.length]).toEqual([query, names.length])
  }
  // Prometheus has no weft_working for a weftd that does not run, so one panel also uses `up`.
  expect(queries.filter((query) => query.includes('weft_working') && query.includes('up{'))).toHaveLength(1)
})

it('has the name of a peer, if known, as a short and escaped label', async () => {
  const names = ['host2', null, `a"b\\\n${'x'.repeat(1000)}`, '\u001B[2J']
  const list = names.map((name, at) => peerWith(at + 2, { name }))
  const { body } = await formatMetrics(statusWith(list))
  const lines = body.split('\n').filter((line) => line.startsWith('weft_peer_answering{'))
  expect(lines).toEqual([
    'weft_peer_answering{peer="10.5.2.0/24",name="host2"} 1',
    'weft_peer_answering{peer="10.5.3.0/24"} 1',
    String.raw`weft_peer_answering{peer="10.5.4.0/24",name="a\"b\\\\n${'x'.repeat(34)}…"} 1`,
    String.raw`weft_peer_answering{peer="10.5.5.0/24",name="\\u001b[2J"} 1`,
  ])
})

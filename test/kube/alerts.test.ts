// alerts.test.ts - tests the alerts with promtool and the labels that the PodMonitor gives. Each cause must fire one alert, however many
// nodes report it, and each alert must lead to the section of the documents with the remedy.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { parse, stringify } from 'yaml'
import { execute } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'
import { needs } from '../support/needs.ts'

const read = (path: string): string => readFileSync(join(packageRoot, path), 'utf8')
interface Rule {
  readonly alert?: string
  readonly annotations: Readonly<Record<string, string>>
}
interface Rules {
  readonly groups: readonly { readonly name: string; readonly rules: readonly Rule[] }[]
}
const RULES = 'deploy/prometheus/weft.rules.yml'
const rules = parse(read(RULES)) as Rules
const alerts = rules.groups.flatMap(({ rules: each }) => each).filter(({ alert }) => alert !== undefined)

describe('the rules', () => {
  it.each(alerts)('$alert links to an existing section', ({ annotations }) => {
    const [path = '', anchor = ''] = (annotations['runbook_url'] ?? '').split('#')
    const page = read(path)
    const headings = [...page.matchAll(/^#+ (.*)$/gm)].map(([, text]) =>
      text!
        .toLowerCase()
        .replaceAll(/[^\w\- ]/g, '')
        .replaceAll(' ', '-'),
    )
    expect([...headings, ...[...page.matchAll(/<a id="([^"]+)">/g)].map(([, id]) => id)]).toContain(anchor)
  })
})

/** Nodes a to e with 10.5.1.0/24 to 10.5.5.0/24, scraped as the PodMonitor says (test/netns/metrics.test.ts). */
const NODES = ['a', 'b', 'c', 'd', 'e'] as const
type NodeName = (typeof NODES)[number]
const subnetOf = (node: NodeName): string => `10.5.${NODES.indexOf(node) + 1}.0/24`
/** STEPS: the number of steps of half a minute. WRONG: the step at which the fault starts. */
const [STEPS, WRONG] = [60, 10]
const always = (value: number): string => `${value}x${STEPS}`
const then = (before: number, after: number | '_'): string => `${before}x${WRONG - 1} ${after}x${STEPS - WRONG}`

interface Scene {
  readonly job?: string
  readonly up?: (node: NodeName) => boolean
  readonly working?: (node: NodeName) => boolean
  readonly hung?: (node: NodeName) => boolean
  /** True if the first node receives packets from the second. */
  readonly receives?: (node: NodeName, peer: NodeName) => boolean
  readonly store?: (node: NodeName) => boolean
  readonly held?: number
  /** A node that reaches the store but does not compare its leases. */
  readonly stale?: NodeName
  readonly unusable?: (node: NodeName) => number
  readonly expiresInS?: (node: NodeName) => number
  /** --subnet-lease-renew-margin, in seconds. */
  readonly marginS?: number
  readonly configGone?: boolean
  /** The seconds by which a node's clock is ahead. */
  readonly clockAhead?: (node: NodeName) => number
  /** False for a node whose host blocks its own containers. */
  readonly host?: (node: NodeName) => boolean
  /** True for a node that forwards with the last known state, so that it has no metrics of its lease and peers yet. */
  readonly asKnown?: (node: NodeName) => boolean
  /** False for a node whose packets bypass its data path. */
  readonly past?: (node: NodeName) => boolean
  /** True if there are too many peers for metrics per peer. */
  readonly isLarge?: boolean
}

function seriesOf(scene: Scene): { series: string; values: string }[] {
  const { job = 'weftd', up = () => true, working = () => true, receives = () => true, store = () => true } = scene
  const found: { series: string; values: string }[] = []
  for (const node of NODES) {
    const at = `job="${job}",instance="node-${node}",namespace="kube-flannel"`
    const put = (name: string, isWell: boolean, labels = '', well = 1, bad = 0): void => {
      // A target that is down has only the metric `up`.
      const isKnown = !scene.asKnown?.(node) || /^(up|weft_(info|state|working|impaired|data_path\w*))$/.test(name)
      const after = (up(node) && isKnown) || name === 'up' ? (isWell ? well : bad) : '_'
      found.push({ series: `${name}{${at}${labels}}`, values: then(well, after) })
    }
    put('up', up(node))
    put('weft_info', true, `,version="1",backend="udp",engine="native",subnet="${subnetOf(node)}"`)
    put('weft_working', working(node))
    put('weft_state', !scene.asKnown?.(node), ',state="forwarding"', 0, 1)
    put('weft_data_path_hung_threads', !scene.hung?.(node), '', 0, 1)
    put('weft_store_reachable', store(node))
    put('weft_store_held_peers', !scene.held, '', 0, scene.held)
    put('weft_store_config_gone', !scene.configGone, '', 0, 1)
    put('weft_impaired', scene.host?.(node) ?? true, ',by="host"', 0, 1)
    put('weft_impaired', scene.past?.(node) ?? true, ',by="bypass"', 0, 1)
    const ahead = scene.clockAhead?.(node) ?? 0
    const times = up(node) ? `${WRONG * 30 + ahead}+30x${STEPS - WRONG}` : `_x${STEPS - WRONG}`
    found.push({ series: `weft_time_seconds{${at}}`, values: `0+30x${WRONG - 1} ${times}` })
    put('weft_peers_stored', true, '', 4)
    put('weft_peers_programmed', !scene.unusable, '', 4, 4 - (scene.unusable?.(node) ?? 0))
    const peers = NODES.filter((peer) => peer !== node)
    // weftd probes only the peers whose lease it can use, and has no weft_peer_answering for the other peers.
    const probed = peers.slice(scene.unusable?.(node) ?? 0)
    const answering = probed.filter((peer) => receives(node, peer)).length
    put('weft_peers_probed', probed.length === 4, '', 4, probed.length)
    put('weft_peers_answering', answering === 4, '', 4, answering)
    const whole = (probed.length / peers.length) * (probed.length === 0 ? 1 : answering / probed.length)
    put('weft_network_whole_ratio', whole === 1, '', 1, whole)
    if (!scene.isLarge)
      for (const peer of peers) {
        const series = `weft_peer_answering{${at},peer="${subnetOf(peer)}"}`
        const after = up(node) && probed.includes(peer) && !scene.asKnown?.(node) ? Number(receives(node, peer)) : '_'
        found.push({ series, values: then(1, after) })
      }
    const ends = (scene.expiresInS?.(node) ?? 86_400) + STEPS * 30 + ahead
    const whileJoined = (value: number): string => (scene.asKnown?.(node) ? then(value, '_') : always(value))
    found.push({ series: `weft_lease_expiry_timestamp_seconds{${at}}`, values: whileJoined(ends) })
    found.push({
      series: `weft_lease_renew_margin_seconds{${at}}`,
      values: whileJoined(scene.marginS ?? 3_600),
    })
    // While the store is available, the leases were compared at the time of this step.
    const isStale = !store(node) || scene.stale === node
    const late =
      up(node) && !scene.asKnown?.(node)
        ? `${WRONG * 30 + ahead}${isStale ? '' : '+30'}x${STEPS - WRONG}`
        : `_x${STEPS - WRONG}`
    const compared = `0+30x${WRONG - 1} ${late}`
    found.push({ series: `weft_store_last_comparison_timestamp_seconds{${at}}`, values: compared })
  }
  return found
}

const broken = (...nodes: readonly NodeName[]) => ({
  not: (node: NodeName): boolean => !nodes.includes(node),
  receives: (node: NodeName, peer: NodeName): boolean => !nodes.includes(node) && !nodes.includes(peer),
})
/** The scenes, and the number of times that each alert fires. */
const SCENES: readonly (readonly [what: string, scene: Scene, fires: Readonly<Record<string, number>>])[] = [
  ['nothing is wrong', {}, {}],
  ['a host is dead', { up: broken('e').not, receives: broken('e').receives }, { WeftDown: 1 }],
  ['two are', { up: broken('d', 'e').not, receives: broken('d', 'e').receives }, { WeftDown: 2 }],
  ['under another job', { job: 'flannel', up: broken('e').not, receives: broken('e').receives }, { WeftDown: 1 }],
  ['weftd alone is dead, and the kernel forwards', { up: broken('e').not }, { WeftDown: 1 }],
  ['all are dead', { up: () => false }, { WeftDown: 5 }],
  ['a firewall is around a host', { receives: broken('e').receives }, { WeftNodeUnreached: 1 }],
  ['one direction of it alone', { receives: (_node, peer) => peer !== 'e' }, { WeftNodeUnreached: 1 }],
  ['the other direction alone', { receives: (node) => node !== 'e' }, { WeftPeersUnreached: 1 }],
  [
    'two hosts do not reach each other',
    { receives: (node, peer) => !['ab', 'ba'].includes(node + peer) },
    { WeftPeersUnreached: 2 },
  ],
  ['a data path is down', { working: broken('e').not, receives: broken('e').receives }, { WeftNotWorking: 1 }],
  [
    'a thread hangs',
    { working: broken('e').not, hung: (node) => node === 'e', receives: broken('e').receives },
    { WeftThreadHangs: 1 },
  ],
  ['the store is down', { store: () => false }, { WeftStoreDown: 1 }],
  ['the store is away from one', { store: broken('e').not }, { WeftStoreUnreachable: 1 }],
  [
    'a node was restarted and does not reach the store',
    { asKnown: (node) => node === 'e' },
    { WeftForwardsAsKnown: 1 },
  ],
  ['two were', { asKnown: (node) => 'de'.includes(node) }, { WeftForwardsAsKnown: 2 }],
  ['all were', { asKnown: () => true }, { WeftForwardsAsKnown: 1 }],
  [
    'some were while the store is down',
    { store: () => false, asKnown: (node) => 'de'.includes(node) },
    { WeftStoreDown: 1 },
  ],
  ['one does not compare', { stale: 'c' }, { WeftLeasesStale: 1 }],
  ['the store was wiped', { held: 3 }, { WeftPeersHeld: 1 }],
  ['and its configuration with it', { held: 3, configGone: true }, { WeftPeersHeld: 1, WeftConfigGone: 1 }],
  ['two hosts have one address', { host: broken('e').not }, { WeftHostImpaired: 1 }],
  [
    'and the others reach the other one',
    { host: broken('e').not, receives: broken('e').receives },
    { WeftHostImpaired: 1 },
  ],
  [
    'packets of two hosts go past their data paths',
    { past: broken('d', 'e').not, working: broken('d', 'e').not },
    { WeftPathBypassed: 2 },
  ],
  ['two disks are full', { host: broken('d', 'e').not }, { WeftHostImpaired: 2 }],
  // All its times come from the same clock, so neither stale leases nor an expiring lease is reported.
  ['a clock is ahead', { clockAhead: (node) => (node === 'e' ? 90_000 : 0) }, { WeftClockOff: 1 }],
  ['a clock is behind', { clockAhead: (node) => (node === 'e' ? -3_600 : 0) }, { WeftClockOff: 1 }],
  ['two are', { clockAhead: (node) => ({ a: -400, b: 90 })[node as string] ?? 0 }, { WeftClockOff: 2 }],
  ['all are, or that of Prometheus', { clockAhead: () => 3_600 }, { WeftClockOff: 1 }],
  ['no clock is quite right', { clockAhead: (node) => (node === 'e' ? 45 : -45) }, {}],
  ['a node has another backend', { unusable: (node) => (node === 'e' ? 4 : 1) }, { WeftPeersUnusable: 1 }],
  [
    'one of many nodes has another backend',
    { isLarge: true, unusable: (node) => (node === 'e' ? 4 : 1) },
    { WeftPeersUnusable: 1 },
  ],
  ['a lease ends', { expiresInS: (node) => (node === 'e' ? 600 : 86_400) }, { WeftLeaseEnding: 1 }],
  [
    'a lease is renewed ten minutes before its end',
    { marginS: 600, expiresInS: (node) => (node === 'e' ? 600 : 86_400) },
    {},
  ],
  ['and is not renewed', { marginS: 900, expiresInS: (node) => (node === 'e' ? 60 : 86_400) }, { WeftLeaseEnding: 1 }],
  [
    'all end, since the store is down',
    { store: () => false, expiresInS: () => 600 },
    { WeftStoreDown: 1, WeftLeaseEnding: 1 },
  ],
  [
    'a large network has a dead host',
    { isLarge: true, up: broken('e').not, receives: broken('e').receives },
    { WeftDown: 1 },
  ],
  ['and one behind a firewall', { isLarge: true, receives: broken('e').receives }, { WeftNetworkNotWhole: 1 }],
  [
    'and one behind a firewall beside a dead one',
    { isLarge: true, up: broken('e').not, receives: broken('d', 'e').receives },
    { WeftDown: 1, WeftNetworkNotWhole: 1 },
  ],
]

describe('the alerts', () => {
  needs('promtool')
  let folder: string
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'weft-alerts-'))
  })
  afterAll(() => rmSync(folder, { recursive: true }))

  async function tried(tests: readonly object[]): Promise<string> {
    const file = join(folder, 'test.yml')
    writeFileSync(file, stringify({ rule_files: [join(packageRoot, RULES)], evaluation_interval: '30s', tests }))
    const { stdout, stderr } = await execute(['promtool', 'test', 'rules', file])
    return stdout + stderr
  }
  const countsAt = (time: string, counts: Readonly<Record<string, number>>) => ({
    expr: 'count by (alertname) (ALERTS{alertstate="firing"})',
    eval_time: time,
    exp_samples: Object.entries(counts).map(([alertname, value]) => ({ labels: `{alertname="${alertname}"}`, value })),
  })

  it.each(SCENES)('fire as expected if %s', async (_what, scene, fires) => {
    const test = { interval: '30s', input_series: seriesOf(scene) }
    const ofAll = [countsAt('4m', {}), countsAt('25m', fires)]
    expect(await tried([{ ...test, promql_expr_test: ofAll }])).toMatch(/SUCCESS\s*$/)
  })

  it('report a weftd that is not scraped', async () => {
    const input_series = [{ series: 'up{job="flannel",instance="x"}', values: always(1) }]
    expect(
      await tried([{ interval: '30s', input_series, promql_expr_test: [countsAt('25m', { WeftAbsent: 1 })] }]),
    ).toMatch(/SUCCESS\s*$/)
  })

  it('report loss, small path MTUs, drops and repairs', async () => {
    const at = 'job="weftd",instance="node-a"'
    const input_series = [
      { series: `weft_info{${at}}`, values: always(1) },
      { series: `weft_peer_answering{${at},peer="10.5.2.0/24"}`, values: always(1) },
      { series: `weft_peer_loss_ratio{${at},peer="10.5.2.0/24"}`, values: always(0.3) },
      { series: `weft_repairs_total{${at}}`, values: `0+2x${STEPS}` },
      { series: `weft_peers_narrow{${at}}`, values: always(1) },
      {
        series: `weft_dropped_packets_total{${at},direction="receive",reason="socket_full"}`,
        values: `0+100x${STEPS}`,
      },
      {
        series: `weft_dropped_packets_total{${at},direction="transmit",reason="queue_full"}`,
        values: `0+100x${STEPS}`,
      },
      {
        series: `weft_dropped_packets_total{${at},direction="receive",reason="spoofed_source"}`,
        values: `0+100x${STEPS}`,
      },
    ]
    const fires = { WeftPathNarrow: 1, WeftPeerLossy: 1, WeftRepairs: 1, WeftDropsForRoom: 2, WeftPacketsNotLetIn: 1 }
    expect(await tried([{ interval: '30s', input_series, promql_expr_test: [countsAt('25m', fires)] }])).toMatch(
      /SUCCESS\s*$/,
    )
  })

  it('are each tested by a scene', () => {
    const named = new Set([
      ...SCENES.flatMap(([, , fires]) => Object.keys(fires)),
      'WeftAbsent',
      'WeftPathNarrow',
      'WeftPeerLossy',
      'WeftRepairs',
      'WeftDropsForRoom',
      'WeftPacketsNotLetIn',
    ])
    expect(alerts.map(({ alert }) => alert).filter((name) => !named.has(name!))).toEqual([])
  })

  it('say in one line which node is concerned, for a person who was just woken', async () => {
    const test = { interval: '30s', input_series: seriesOf({ receives: broken('e').receives }) }
    const rule = alerts.find(({ alert }) => alert === 'WeftNodeUnreached')
    const exp_alerts = [
      {
        exp_labels: { severity: 'critical', job: 'weftd', peer: '10.5.5.0/24' },
        exp_annotations: {
          ...rule!.annotations,
          summary: '100% of the peers do not reach the node with the subnet 10.5.5.0/24',
        },
      },
    ]
    const alert_rule_test = [{ eval_time: '25m', alertname: 'WeftNodeUnreached', exp_alerts }]
    expect(await tried([{ ...test, alert_rule_test }])).toMatch(/SUCCESS\s*$/)
  })
})

// readers.ts - turns the output of each reader of a network's state on a host into a few words that a test can compare. lab/broken.ts has
// the expected words.

import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { type Member, type Network, type Reader } from '../../lab/broken.ts'
import { packageRoot, type Place } from '../../lab/lab.ts'
import { verdictOf } from '../../src/report/page/model.ts'
import type { Status } from '../../src/report/status.ts'
import { diagnoseStatus } from '../../src/tool/doctor/checks.ts'
import type { Report } from '../../src/tool/weft/bench-text.ts'
import { weft, weftOf } from './hosts.ts'

interface Said {
  /** Empty if the reader finds nothing wrong. */
  readonly words: readonly string[]
  /** The whole output, for a person. */
  readonly text: string
}
export const HEALTHZ_PORT = 8081
const NOBODY: Said['words'] = ['no-daemon']
/**
 * The round trip in ms above which a path counts as slow. On a busy machine the round trip is longer than in most
 * networks.
 */
const SLOW_MS = 250
/** Below this loss a path counts as fine, because a full path loses a little by chance. */
const LOSSY_PERCENT = 1

/** Returns the words of a table whose pattern matches a text. */
const wordsIn = (text: string, table: Readonly<Record<string, RegExp>>): string[] =>
  Object.keys(table).filter((word) => table[word]?.test(text))

const STATUS = {
  'no-daemon': /^weft status: no weftd answers/m,
  starting: /^weftd .*, starting/m,
  'as-last-known': /^weftd .*, forwarding as last known/m,
  leaving: /^weftd .*, leaving/m,
  'by-thread': /^weftd .*, impaired by .*a thread that hangs/m,
  'by-path': /^weftd .*, impaired by .*its data path/m,
  'by-host': /^weftd .*, impaired by .*its own host/m,
  'by-rules': /^weftd .*, impaired by .*its firewall rules/m,
  'by-peers': /^weftd .*, impaired by .*its peers/m,
  'by-store': /^weftd .*, impaired by .*its store/m,
  'not-whole': /^ *peers .*: (?!100% whole)[\d.]+% whole/m,
  store: /^ *store .* unreachable/m,
  kept: /kept although the store lacks them/,
  repairs: /^ *repairs/m,
  narrow: /, but long packets|are fragmented, or their senders/,
}

interface Looking {
  readonly network: Network
  readonly me: Member
  readonly other: Member
}

const beforeOf = ({ network, me }: Looking): string[] => [
  'env',
  ...Object.entries(network.envOf(me.host)).map(([name, value]) => `${name}=${value}`),
]
const run = (looking: Looking, words: readonly string[]) => weft(looking.me.host, words, beforeOf(looking))

/** Requests a path from a daemon, as a browser does. */
function httpGet(socketPath: string, path: string): Promise<string | undefined> {
  return new Promise((resolve) => {
    const asking = request({ socketPath, path, timeout: 2_000 }, (response) => {
      let text = ''
      response.setEncoding('utf8').on('data', (part: string) => (text += part))
      response.once('end', () => resolve(text)).once('error', () => resolve(undefined))
    })
    asking.once('timeout', () => asking.destroy(new Error('silent'))).once('error', () => resolve(undefined))
    asking.end()
  })
}
const statusOf = async ({ me }: Looking): Promise<Status | undefined> => {
  const text = await httpGet(me.host.statusSocket, '/status.json')
  return text === undefined ? undefined : (JSON.parse(text) as Status)
}

type Read = (looking: Looking, sinceMs: number) => Promise<Said>

const READS: Readonly<Record<Exclude<Reader, 'alerts'>, Read>> = {
  async status(looking) {
    const { code, stdout, stderr } = await run(looking, ['status'])
    const rows = [...stdout.matchAll(/ answering +([\d.]+) ms +(\d+)%/g)]
    const slow = rows.some(([, ms]) => Number(ms) >= SLOW_MS) ? ['slow'] : []
    const loss = rows.some(([, , percent]) => Number(percent) > 0) ? ['loss'] : []
    const words = [...wordsIn(stdout + stderr, STATUS), ...slow, ...loss]
    return { words: code === 0 || words.length > 0 ? words : [`exit-${code}`], text: stdout + stderr }
  },
  /** The page's verdict and findings, from the data that the page requests. */
  async page(looking) {
    const status = await statusOf(looking)
    if (!status) return { words: NOBODY, text: '' }
    const verdict = verdictOf(status)
    const found = diagnoseStatus(status)
    const colour = { good: [], bad: ['red'], doubtful: ['amber'] }[verdict.tone]
    const words = [...new Set([...colour, ...found.map(({ name }) => name)])]
    return { words, text: `${verdict.title}. ${verdict.detail}\n${JSON.stringify(found)}` }
  },
  async doctor(looking) {
    const { stdout, stderr } = await run(looking, ['doctor', '--json', '--subnet-file', looking.me.host.subnetFile])
    const checks = JSON.parse(stdout) as { findings: { name: string }[] }[]
    const words = [...new Set(checks.flatMap(({ findings }) => findings.map(({ name }) => name)))]
    return { words, text: stdout + stderr }
  },
  /** Explains a packet to a container of the other host, and a packet from it. */
  async explain(looking) {
    const [mine, theirs] = [looking.me.pod.address, looking.other.pod.address]
    const ways = await Promise.all(
      [
        ['out', mine, theirs],
        ['in', theirs, mine],
      ].map(async ([way, from = '', to = '']) => {
        const { stdout, stderr } = await run(looking, ['explain', from, to, '--json'])
        if (stdout === '') return { words: NOBODY, text: stderr }
        const { steps } = JSON.parse(stdout) as { steps: { step: string; passes?: boolean }[] }
        const failed = steps
          .filter(({ passes }) => passes === false)
          .map(({ step }) => `${way}:${step.replace(' ', '-')}`)
        return { words: failed, text: stdout }
      }),
    )
    return { words: [...new Set(ways.flatMap(({ words }) => words))], text: ways.map(({ text }) => text).join('') }
  },
  async bench(looking) {
    const words = ['bench', looking.other.host.address, '--seconds', '0.3', '--pairs', '1', '--streams', '2', '--json']
    const { stdout, stderr } = await run(looking, words)
    const text = stdout + stderr
    if (/refuses: no weftd answers on this host/.test(stderr)) return { words: ['no-daemon-there'], text }
    if (/no weftd answers/.test(stderr)) return { words: NOBODY, text }
    if (/the listener is gone/.test(stderr)) return { words: ['silent-there'], text }
    if (stdout === '') return { words: [/no program listens/.test(stderr) ? 'nobody-listens' : 'not-measured'], text }
    const report = JSON.parse(stdout) as Partial<Report> & { unreached?: string }
    const { unreached, udp, roundTripMs, notes = [] } = report
    const narrow = /narrow|bytes/.test(`${unreached ?? ''}${notes.join(' ')}`) ? ['narrow'] : []
    if (unreached !== undefined) return { words: [...narrow, ...(narrow.length > 0 ? [] : ['not-inside'])], text }
    const isLossy = [udp?.outside, udp?.inside].some((way) => (way?.lossPercent ?? 0) > LOSSY_PERCENT)
    const isSlow = (roundTripMs?.inside ?? 0) >= SLOW_MS
    return {
      text,
      words: [
        ...narrow,
        ...(report.isBroken ? ['broken'] : []),
        ...(isLossy ? ['loss'] : []),
        ...(isSlow ? ['slow'] : []),
      ],
    }
  },
  async events(looking, sinceMs) {
    const events = (await statusOf(looking))?.events.filter(({ at }) => Date.parse(at) >= sinceMs) ?? []
    const text = events.map(({ at, level, text: line }) => `${at} ${level} ${line}\n`).join('')
    return { words: wordsIn(text, EVENTS), text }
  },
}

const EVENTS = {
  repaired: /put back|repair|is there again/i,
  'lease-lost': /lease .*(lost|gone|missing)|writes? its lease again/i,
  'not-written': /subnet\.env.*(ENOSPC|no space)/i,
  twin: /Another host uses/,
  'config-gone': /configuration is gone/,
}

export interface Readers {
  /** Runs one reader on a host; `other` is the peer of interest. */
  read(me: Member, other: Member, reader: Reader, sinceMs: number): Promise<Said>
  close(): Promise<void>
}

/** Starts Prometheus with weft's alerts in the switch's namespace, and a server of weft bench on each of these hosts. */
export async function startReaders(network: Network, listeners: readonly Member[]): Promise<Readers> {
  const prometheus = startPrometheus(network)
  for (const { host } of listeners) {
    const listener = host.spawn(weftOf(host, ['bench', '--listen']))
    if (!listener.stdout) throw new Error('the listener has no stdout')
    await once(createInterface({ input: listener.stdout }), 'line')
  }
  return {
    read: (me, other, reader, sinceMs) =>
      reader === 'alerts' ? prometheus(me) : READS[reader]({ network, me, other }, sinceMs),
    async close() {},
  }
}

function startPrometheus({ lab, members }: Network): (member: Member) => Promise<Said> {
  const place: Place = lab.switch
  const folder = join(lab.folder, 'prometheus')
  mkdirSync(folder)
  const config = join(folder, 'prometheus.yml')
  const targets = members.map(({ host }) => `'${host.address}:${HEALTHZ_PORT}'`).join()
  writeFileSync(
    config,
    [
      'global: { scrape_interval: 1s, evaluation_interval: 1s }',
      `scrape_configs: [{ job_name: weftd, static_configs: [{ targets: [${targets}] }] }]`,
      `rule_files: ['${join(packageRoot, 'deploy/prometheus/weft.rules.yml')}']`,
    ].join('\n'),
  )
  const log = ['--log.level=error']
  place.spawn([
    'prometheus',
    `--config.file=${config}`,
    `--storage.tsdb.path=${folder}/data`,
    '--web.listen-address=127.0.0.1:9090',
    ...log,
  ])
  return async ({ host, pod }) => {
    const subnet = pod.address.replace(/\.\d+$/, '.0/24')
    const url = 'http://127.0.0.1:9090/api/v1/query?query=ALERTS'
    const { stdout } = await place.run(['curl', '-sS', url])
    if (stdout === '') return { words: ['not-asked'], text: '' }
    const { data } = JSON.parse(stdout) as {
      data: { result: { metric: { alertname: string; instance?: string; peer?: string } }[] }
    }
    // An alert without a host concerns the whole network.
    const all = data.result
      .map(({ metric }) => metric)
      .filter(({ instance, peer }) =>
        instance === undefined ? peer === undefined || peer === subnet : instance.startsWith(`${host.address}:`),
      )
    return { words: [...new Set(all.map(({ alertname }) => alertname))], text: JSON.stringify(data.result) }
  }
}

// facts.ts - what the doctor looks at on this host: gathered here, judged in checks.ts.

import { open, readFile } from 'node:fs/promises'
import { get as httpGet } from 'node:http'
import { get as httpsGet } from 'node:https'
import { parseEnv } from 'node:util'
import { isWeftError } from '../errors.ts'
import type { Run } from '../host/command.ts'
import { listLinks, routesWithin, type Link, type Route } from '../host/links.ts'
import { getSysctl } from '../host/sysctl.ts'
import { parseIpv4Net } from '../net/ipv4.ts'
import type { PeerStatus, Status } from '../status/status.ts'

/** So many peers are asked; where there are more, what the daemon knows of the others has to do. */
const ASKED_PEERS = 16
const CLOCK_WAIT_MS = 2_000

export interface Facts {
  /** What the daemon says; undefined when it says nothing, for the reason in `silence`. */
  readonly status: Status | undefined
  readonly silence: string | undefined
  /** Whether that is because we may not ask. */
  readonly isForbidden?: boolean
  /** The clock of the day, in ms. */
  readonly now: number
  readonly isRoot: boolean
  /** Why /dev/net/tun cannot be opened, as an errno's name; undefined when it can. */
  readonly tunProblem: string | undefined
  readonly isForwarding: boolean
  readonly links: readonly Link[]
  /** To the network and to parts of it. */
  readonly routes: readonly Route[]
  /** `iptables -S`, and `nft list ruleset`; undefined where they cannot be asked. */
  readonly iptables: string | undefined
  readonly nft: string | undefined
  /** subnet.env's variables; undefined when there is no such file. */
  readonly subnetEnv: Readonly<Record<string, string | undefined>> | undefined
  /** How far the store's clock is ahead of ours, where it tells it. */
  readonly storeAheadMs: number | undefined
  /** Of the peers that were asked now, by lease. */
  readonly answers: ReadonlyMap<string, Answers>
  /** Why nobody could be asked. */
  readonly unasked: string | undefined
}

/** Whether a small packet came back, and one as large as the data path takes. */
export interface Answers {
  readonly small: boolean
  readonly large: boolean
}

/** Asks a peer; rejects when nobody can be asked. */
export type AskPeer = (peer: PeerStatus, bytes: number) => Promise<boolean>

export interface Sources {
  readonly status: Status | undefined
  readonly silence: string | undefined
  readonly isForbidden?: boolean
  readonly subnetFile: string
  readonly run: Run
  /** Undefined where the backend has nobody to ask. */
  readonly ask: AskPeer | undefined
}

export async function gatherFacts({ status, silence, subnetFile, run, ask }: Sources): Promise<Facts> {
  const network = parseIpv4Net(status?.config?.network ?? '')
  const file = status?.daemon.subnetFile ?? subnetFile
  const unlessRefused = <T>(work: Promise<T>): Promise<T | undefined> =>
    work.catch((error: unknown) => {
      if (isWeftError(error)) return undefined
      throw error
    })
  const [asked, ...looked] = await Promise.all([
    askPeers(status, ask),
    tunProblem(),
    getSysctl('net/ipv4/ip_forward'),
    listLinks(run),
    network ? routesWithin(run, network) : [],
    unlessRefused(run('iptables', ['-w', '5', '-S'])),
    unlessRefused(run('nft', ['list', 'ruleset'])),
    readFile(file, 'utf8').then(parseEnv, () => undefined),
    storeAheadMs(status),
  ])
  const [tun, forwarding, links, routes, iptables, nft, subnetEnv, ahead] = looked
  return {
    ...{
      status,
      silence,
      now: Date.now(),
      isRoot: process.getuid?.() === 0,
      tunProblem: tun,
      links,
      routes,
      iptables,
      nft,
    },
    ...{ isForwarding: forwarding !== '0', subnetEnv, storeAheadMs: ahead, ...asked },
  }
}

async function askPeers(
  status: Status | undefined,
  ask: AskPeer | undefined,
): Promise<Pick<Facts, 'answers' | 'unasked'>> {
  const mtu = status?.dataPath?.mtu ?? undefined
  const programmed = (status?.peers?.list ?? []).filter(({ state }) => state !== 'stored')
  if (!ask || mtu === undefined) return { answers: new Map(), unasked: undefined }
  try {
    const answers = await Promise.all(
      programmed.slice(0, ASKED_PEERS).map(async (peer) => {
        // What the answer depends on is not to be one lost packet.
        const small = (await ask(peer, 0)) || (await ask(peer, 0))
        // What the kernel knows of the path the senders are told.
        const whole = peer.pathMtu ?? mtu
        const large = small && ((await ask(peer, whole)) || (await ask(peer, whole)))
        return [peer.lease, { small, large }] as const
      }),
    )
    return { answers: new Map(answers), unasked: undefined }
  } catch (error) {
    if (!isWeftError(error)) throw error
    return { answers: new Map(), unasked: error.message }
  }
}

async function tunProblem(): Promise<string | undefined> {
  try {
    await (await open('/dev/net/tun', 'r+')).close()
    return undefined
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? 'an error'
  }
}

/** By the Date of an answer of etcd's HTTP side (RFC 9110 section 6.6.1), which tells it to anybody; whatever the answer is. */
function storeAheadMs(status: Status | undefined): Promise<number | undefined> {
  const [endpoint = ''] = status?.store.name === 'etcd' ? (status.daemon.leases.split(/[ ,]/) ?? []) : []
  if (!/^https?:\/\//.test(endpoint)) return Promise.resolve(undefined)
  const signal = AbortSignal.timeout(CLOCK_WAIT_MS)
  return new Promise((resolve) => {
    const began = Date.now()
    const options = { signal, rejectUnauthorized: false }
    const get = endpoint.startsWith('https') ? httpsGet : httpGet
    get(`${endpoint}/version`, options, (response) => {
      response.resume()
      const date = Date.parse(response.headers.date ?? '')
      resolve(Number.isNaN(date) ? undefined : date + 500 - (began + Date.now()) / 2)
    }).once('error', () => resolve(undefined))
  })
}

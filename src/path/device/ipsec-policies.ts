// ipsec-policies.ts - maintains the kernel's IPsec policies, which encrypt the packets to peers and drop unencrypted
// packets of the network.
//
// flanneld makes three policies for each peer (pkg/backend/ipsec/handle_xfrm.go). weftd adds policies that block all
// other packets to and from the network, so that no packet leaves unencrypted before the policies of a peer exist.

import { isWeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { runBatch } from '../../host/batch.ts'
import { isRefusal, type Run } from '../../host/command.ts'
import type { Watched } from '../../host/events.ts'
import { isPartOf, isPartOfEither, parseNet, type Net } from '../../net/address.ts'
import { IPSEC_ALLOW_PRIORITY, IPSEC_BLOCK_PRIORITY, IPSEC_REQUEST_ID } from '../catalog.ts'

/** The two ends of a tunnel, as texts: the subnet and the host address of this node and of the peer. */
export interface PolicyPeer {
  readonly subnet: string
  readonly host: string
}

/** The kernel's events about changes of IPsec policies. */
export const POLICY_CHANGES: Watched = { topics: ['ipsec policies'] }

interface PolicyOptions {
  readonly network: string
  readonly own: PolicyPeer
  /**
   * True if hosts have addresses within the network, so that this host's own packets to the network are allowed to
   * leave unencrypted.
   */
  readonly hasHosts?: boolean
  readonly run: Run
  readonly log: Log
}

export class IpsecPolicies {
  readonly #options: PolicyOptions
  /** The wanted policies: a map from each selector to the words after the selector in `ip xfrm policy update`. */
  #wanted: ReadonlyMap<string, string> = new Map()
  /** The selectors of wanted policies that the kernel refused. */
  #refused: ReadonlySet<string> = new Set()

  constructor(options: PolicyOptions) {
    this.#options = options
  }

  /**
   * Adds the policies that block unencrypted packets of the network. The policies that an earlier run made for the
   * peers stay until `apply`, so that a restart of weftd does not interrupt traffic.
   */
  async block(): Promise<void> {
    this.#wanted = new Map(this.#blocks())
    await this.#sync((selector, words) => words.startsWith('tmpl ') && this.#isToOrFromUs(selector, words))
  }

  /** Makes the kernel's policies equal to those for `peers`. Logs policies that the kernel refuses. */
  async apply(peers: readonly PolicyPeer[]): Promise<void> {
    this.#wanted = new Map([...this.#blocks(), ...peers.flatMap((peer) => this.#policiesOf(peer))])
    await this.#sync()
  }

  /** Restores missing policies and removes superfluous ones. Returns a description of each repair. */
  async resync(): Promise<readonly string[]> {
    return (await this.#sync()).map((selector) => `the IPsec policy ${selector} was gone`)
  }

  /** Returns true if the kernel has accepted all policies of the peer. */
  isSet(peer: PolicyPeer): boolean {
    return this.#policiesOf(peer).every(([selector]) => this.#wanted.has(selector) && !this.#refused.has(selector))
  }

  /**
   * Adds missing policies, and removes superfluous ones except those for which `mayStay` returns true. Returns the
   * selectors of the policies that were added.
   */
  async #sync(mayStay: (selector: string, words: string) => boolean = () => false): Promise<readonly string[]> {
    const { network, run, log } = this.#options
    const there = await listPolicies(run)
    const missing = [...this.#wanted].filter(([selector, words]) => there.get(selector) !== words)
    const gone = [...there].filter(([selector, words]) => !this.#wanted.has(selector) && !mayStay(selector, words))
    const superfluous = gone.filter(([selector]) => isFor(selector, network))
    for (const [selector, words] of missing) if (!there.has(selector)) logChange(log, 'Adding', words)
    for (const [, words] of superfluous) logChange(log, 'Deleting', words)
    const isDone = await runBatch(run, [
      // Add policies before removing superfluous ones, so that every packet matches either the policy for its peer or
      // the policy that blocks it.
      ...missing.map(([selector, words]) => `xfrm policy update ${selector} ${words}`),
      ...superfluous.map(([selector]) => `xfrm policy delete ${selector}`),
    ])
    const after = isDone ? undefined : await listPolicies(run)
    const refused = after ? missing.filter(([selector, words]) => after.get(selector) !== words) : []
    for (const [selector] of refused)
      if (!this.#refused.has(selector)) log.error(`error adding ipsec policy: the kernel refuses ${selector}`)
    this.#refused = new Set(refused.map(([selector]) => selector))
    return missing.map(([selector]) => selector).filter((selector) => !this.#refused.has(selector))
  }

  /** Returns true if the policy has this node's subnet and host address, in either direction. */
  #isToOrFromUs(selector: string, words: string): boolean {
    const { subnet, host } = this.#options.own
    return selector.endsWith(' dir out')
      ? selector.startsWith(`src ${subnet} `) && words.startsWith(`tmpl src ${host} `)
      : selector.includes(` dst ${subnet} `) && words.includes(` dst ${host} `)
  }

  #policiesOf({ subnet, host }: PolicyPeer): (readonly [string, string])[] {
    const { own } = this.#options
    const inward = template(host, own.host)
    return [
      [`src ${own.subnet} dst ${subnet} dir out`, template(own.host, host)],
      [`src ${subnet} dst ${own.subnet} dir in`, inward],
      [`src ${subnet} dst ${own.subnet} dir fwd`, inward],
    ]
  }

  /**
   * Returns the policies that block the network's packets, and the policies that let packets within this node's own
   * subnet pass.
   */
  #blocks(): (readonly [string, string])[] {
    const { own, network, hasHosts } = this.#options
    const allow = `action allow priority ${IPSEC_ALLOW_PRIORITY}`
    const block = `action block priority ${IPSEC_BLOCK_PRIORITY}`
    return [
      [`src 0.0.0.0/0 dst ${own.subnet} dir out`, allow],
      [`src ${own.subnet} dst ${own.subnet} dir in`, allow],
      [`src ${own.subnet} dst ${own.subnet} dir fwd`, allow],
      [`src ${hasHosts ? own.subnet : '0.0.0.0/0'} dst ${network} dir out`, block],
      [`src ${network} dst ${own.subnet} dir in`, block],
      [`src ${network} dst ${own.subnet} dir fwd`, block],
    ]
  }
}

/**
 * Logs flanneld's line for a policy of a peer. flanneld logs it once for each of a peer's three policies
 * (pkg/backend/ipsec/handle_xfrm.go).
 */
function logChange(log: Log, verb: 'Adding' | 'Deleting', words: string): void {
  const [, from, to] = /^tmpl src (\S+) dst (\S+) /.exec(words) ?? []
  if (from === undefined || to === undefined) return
  const reqid = IPSEC_REQUEST_ID.toString(16)
  log.info(`${verb} ipsec policy: {Dst: ${to}, Src: ${from}, Proto: esp, Mode: tunnel, Spi: 0x0, Reqid: 0x${reqid}}`)
}

const template = (from: string, to: string): string =>
  `tmpl src ${from} dst ${to} proto esp reqid ${IPSEC_REQUEST_ID} mode tunnel`

/**
 * Lists the policies that weftd or flanneld made, in the form of `#wanted`. For a policy that does not have this form,
 * the map has the text `other` in place of the words. With `-o` iproute2 prints a policy in one line, with `\` in place
 * of a line break, and prints neither the action `allow` nor the default priority of templates.
 */
export async function listPolicies(run: Run): Promise<ReadonlyMap<string, string>> {
  const output = await run('ip', ['-o', 'xfrm', 'policy', 'list']).catch((error: unknown) => {
    if (isWeftError(error, 'COMMAND') && isRefusal(error)) return '' // a kernel without IPsec
    throw error
  })
  const policies = new Map<string, string>()
  for (const line of output.split('\n')) {
    const text = line.replaceAll(/[\\\s]+/g, ' ')
    const selector = /^src \S+ dst \S+ dir \S+/.exec(text)?.[0]
    if (selector === undefined) continue
    const words = wordsOf(text)
    if (words !== undefined) policies.set(selector, words)
  }
  return policies
}

function wordsOf(text: string): string | undefined {
  const priority = Number(/ priority (\d+)/.exec(text)?.[1] ?? 0)
  const [, from, to, more] = / tmpl src (\S+) dst (\S+) proto esp (.*)/.exec(text) ?? []
  if (from !== undefined && to !== undefined) {
    if (!more?.includes(`reqid ${IPSEC_REQUEST_ID} `)) return undefined
    return priority === 0 && more.trim() === `reqid ${IPSEC_REQUEST_ID} mode tunnel` ? template(from, to) : 'other'
  }
  if (priority !== IPSEC_ALLOW_PRIORITY && priority !== IPSEC_BLOCK_PRIORITY) return undefined
  return `action ${text.includes(' action block ') ? 'block' : 'allow'} priority ${priority}`
}

/**
 * Returns true if the source or the destination of the policy overlaps one of the networks. If the source
 * or destination is wider than the network, weftd made the policy before the network became narrower.
 */
export function concerns(selector: string, networks: readonly Net[]): boolean {
  const [, source = '', , destination = ''] = selector.split(' ')
  return [source, destination].some((text) => {
    const net = parseNet(text)
    if (net === undefined || net.prefixLength === 0) return false // 0.0.0.0/0 names no network
    return networks.some((network) => isPartOfEither(net, network))
  })
}

/** Removes the policies of weftd and flanneld for the network. */
export async function removePolicies(run: Run, network: Net): Promise<void> {
  const selectors = [...(await listPolicies(run)).keys()].filter((selector) => concerns(selector, [network]))
  await runBatch(
    run,
    selectors.map((selector) => `xfrm policy delete ${selector}`),
  )
}

/**
 * Returns true if the source or the destination of the policy is within the network. So it is true for the policies of
 * an earlier subnet of this node too. Policies for other networks may belong to another program.
 */
function isFor(selector: string, network: string): boolean {
  const whole = parseNet(network)
  const [, source = '', , destination = ''] = selector.split(' ')
  return [source, destination].some((text) => {
    const net = parseNet(text)
    return net !== undefined && whole !== undefined && isPartOf(net, whole)
  })
}

// firewall.ts - makes the kernel's rules equal the wish, by iptables or by nft, and says when they had to be mended.
//
// What the kernel shows right after the rules were applied is what it must show from then on, rule by rule and in
// order: versions of iptables and nft spell one rule in several ways.

import { describeError, isWeftError } from '../errors.ts'
import type { Run } from '../host/command.ts'
import type { Log } from '../log.ts'
import { formatIpv4Net, type Ipv4Net } from '../net/ipv4.ts'
import {
  iptablesChains,
  isIptables162,
  nftInput,
  nftRemoval,
  oursInSave,
  removeInput,
  restoreInput,
  type FirewallWish,
} from './rules.ts'

/** Seconds that iptables waits for its lock, less than a command may take. */
const LOCK_WAIT = '5'

export interface Firewall {
  /**
   * Makes the rules right for a node with this subnet; again and again, and when the subnet changes. What was mended, in
   * words; nothing the first time. Throws WeftError when it cannot.
   */
  ensure(subnet: Ipv4Net): Promise<readonly string[]>
}

export interface FirewallOptions extends Pick<FirewallWish, 'network' | 'masq' | 'forward'> {
  /** --ip-masq-fully-random-disable */
  readonly plainPorts: boolean
  readonly run: Run
  readonly log: Log
}

export function createIptables({ run, log, plainPorts, ...wish }: FirewallOptions): Firewall {
  const shown = new Map<string, string>()
  let isModern: boolean | undefined
  return {
    async ensure(subnet) {
      if (isModern === undefined) {
        isModern = isIptables162(await run('iptables', ['--version']))
        log.info('Cleaning-up unused traffic manager rules')
        await run('nft', ['-f', '-'], { input: nftRemoval() }).catch(
          (error: unknown) => log.v(2) && log.info(describeError(error)),
        )
        log.info('Starting flannel in iptables mode...')
      }
      const restore = ['--noflush', ...(isModern ? ['--wait', LOCK_WAIT] : [])]
      const mended: string[] = []
      for (const chain of iptablesChains({ ...wish, subnet, randomFully: isModern && !plainPorts })) {
        const read = async () => oursInSave(await run('iptables-save', ['-t', chain.table]), chain)
        const ours = await read()
        const known = shown.get(chain.chain)
        const wanted = `${formatIpv4Net(subnet)}\n`
        if (known === wanted + ours.join('\n')) continue
        await run('iptables-restore', restore, { input: restoreInput(chain, ours) })
        if (known?.startsWith(wanted)) mended.push(`rules of ${chain.chain}`)
        shown.set(chain.chain, wanted + (await read()).join('\n'))
      }
      if (mended.length > 0) log.info('Some iptables rules are missing; deleting and recreating rules')
      return mended
    },
  }
}

export function createNftables({ run, log, plainPorts, ...wish }: FirewallOptions): Firewall {
  let shown: string | undefined
  let randomFully: boolean | undefined
  const read = () =>
    run('nft', ['-s', 'list', 'table', 'ip', 'flannel-ipv4']).catch((error: unknown) => {
      if (isWeftError(error, 'COMMAND')) return '' // there is none
      throw error
    })
  return {
    async ensure(subnet) {
      if (randomFully === undefined) {
        randomFully = !plainPorts && (await knowsFullyRandom(run, log))
        log.info('Cleaning-up unused traffic manager rules')
        await removeIptablesRules(run, subnet, wish.network, log)
        log.info('Starting flannel in nftables mode...')
      }
      const wanted = `${formatIpv4Net(subnet)}\n`
      if (shown !== undefined && shown === wanted + (await read())) return []
      await run('nft', ['-f', '-'], { input: nftInput({ ...wish, subnet, randomFully }) })
      const mended = shown?.startsWith(wanted) ? ['the table flannel-ipv4'] : []
      shown = wanted + (await read())
      return mended
    },
  }
}

async function knowsFullyRandom(run: Run, log: Log): Promise<boolean> {
  const input =
    'table ip masqueradeTest { chain test { type nat hook postrouting priority srcnat; masquerade fully-random; }; }\n'
  try {
    await run('nft', ['-c', '-f', '-'], { input })
    return true
  } catch {
    log.warn('nftables: random fully unsupported')
    return false
  }
}

/** Removes what an iptables mode left. Without the binary there is nobody to ask, and the start goes on. */
async function removeIptablesRules(run: Run, subnet: Ipv4Net, network: Ipv4Net, log: Log): Promise<void> {
  try {
    for (const chain of iptablesChains({ network, subnet, masq: true, forward: true, randomFully: false })) {
      const save = await run('iptables-save', ['-t', chain.table])
      if (!save.includes(`:${chain.chain} `)) continue
      await run('iptables-restore', ['--noflush'], { input: removeInput(chain, oursInSave(save, chain)) })
    }
  } catch (error) {
    log.warn(`Rules that an iptables mode left, if any, stay: ${describeError(error)}`)
  }
}

// firewall.test.ts - when the rules are checked, and how repairs and failures are reported.

import { existsSync } from 'node:fs'
import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { createBell, pause } from '../../../../src/host/bell.ts'
import { hostKernel } from '../../../../src/host/netlink/host-kernel.ts'
import type { Nets } from '../../../../src/net/address.ts'
import { parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6Net } from '../../../../src/net/ipv6.ts'
import { firewallFor, raiseFirewall, raiseOrLate } from '../../../../src/node/loops/firewall.ts'
import type { Node } from '../../../../src/node/node.ts'
import { FLAGS, type DaemonOptions } from '../../../../src/options.ts'
import { createFirewall } from '../../../../src/path/firewall/firewall.ts'
import {
  installRig,
  dataPaths,
  ended,
  lines,
  log as rigLog,
  logged,
  nodeStatus,
  ownership,
  readiness,
  ready,
  restart,
  start,
  stopping,
  store,
  subnetFile,
  until,
  value,
} from '../../../support/node-rig.ts'

installRig()
vi.mock('../../../../src/path/firewall/firewall.ts', () => ({ createFirewall: vi.fn<typeof createFirewall>() }))
/** The process that has the lock of iptables. */
const lock = vi.hoisted((): { holder: string | undefined } => ({ holder: undefined }))
vi.mock('../../../../src/host/xtables-lock.ts', () => ({ xtablesLockHolder: async () => lock.holder }))

it('repairs the rules at their own interval, and checks the device when it changes, however many repairs there were', async () => {
  let raised = 0
  const rules = {
    raise: async () => void raised++,
    ensure: async () => ({ repaired: Array.from({ length: 100 }, () => 'rules of FLANNEL-FWD'), failures: [] }),
  }
  const doubt = createBell()
  start({ firewall: { rules, resyncMs: 1000 } }, doubt)
  await ready()
  expect(raised).toBe(1)
  await vi.advanceTimersByTimeAsync(1000)
  expect(lines.filter((line) => line.startsWith('W Repaired: rules'))).toHaveLength(7)
  for (const round of [1, 2, 3]) {
    dataPaths[0]!.repaired = ['flannel0 was down']
    doubt.ring()
    await vi.advanceTimersByTimeAsync(250)
    expect(lines.filter((line) => line.startsWith('W Repaired: flannel0'))).toHaveLength(round)
  }
})

it('counts the repairs of one family while the rules of the other cannot be set, which is reported once', async () => {
  const failures = [new WeftError('COMMAND', 'no nat', { remedy: 'load it' })]
  const rules = { raise: async () => {}, ensure: async () => ({ repaired: ['rules of FLANNEL-FWD'], failures }) }
  start({ firewall: { rules, resyncMs: 1000 } })
  await ready()
  await vi.advanceTimersByTimeAsync(2000)
  expect(lines.filter((line) => line.startsWith('W Repaired: rules'))).toHaveLength(2)
  expect(lines.filter((line) => line.includes('no nat'))).toEqual(['E no nat; load it'])
})

it('passes the networks of each family, those of an earlier run, and the subnets of the lease', async () => {
  const raise = vi.fn<(subnet: Nets) => Promise<void>>(async () => {})
  vi.mocked(createFirewall).mockReturnValue({ raise, ensure: async () => ({ repaired: [], failures: [] }) })
  const defaults = Object.fromEntries(Object.entries(FLAGS).map(([name, flag]) => [name, flag.default])) as unknown
  const options = { ...(defaults as DaemonOptions), 'ip-masq': true, 'ip-blackhole-route': true }
  const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
  const [ipv4, ipv6] = [parseIpv4Net('10.5.1.0/24')!, parseIpv6Net('fd00:5:0:1::/64')!]
  const previous = { network: {}, subnet: { ipv4, ipv6 } }
  for (const [text, network] of [
    ['{"Network":"10.5.0.0/16"}', { ipv4: parseIpv4Net('10.5.0.0/16'), ipv6: undefined }],
    [
      '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","EnableNFTables":true}',
      { ipv4: undefined, ipv6: parseIpv6Net('fd00:5::/48') },
    ],
    [
      '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}',
      { ipv4: parseIpv4Net('10.5.0.0/16'), ipv6: parseIpv6Net('fd00:5::/48') },
    ],
  ] as const) {
    const firewall = firewallFor(
      parseNetworkConfig(text),
      { options, kernel: hostKernel, log, signal: new AbortController().signal },
      previous,
    )
    expect(createFirewall).toHaveBeenLastCalledWith(
      text.includes('NFTables') ? 'nftables' : 'iptables',
      expect.objectContaining({ network, previous, masq: true, forward: true, blackhole: true }),
    )
    const subnet = { ipv4, ipv6 }
    await raiseFirewall({ firewall, lease: { subnet }, log, signal: stopping.signal } as unknown as Node)
    expect(raise).toHaveBeenLastCalledWith(subnet)
  }
})

it("leaves the rules to a successor, but not for ever to a waiting one, and searches again for the predecessor's rules", async () => {
  let [ensured, again] = [0, 0]
  const rules = {
    raise: async () => {},
    ensure: async () => (ensured++, { repaired: [], failures: [] }),
    lookAgain: () => void again++,
  }
  let setFree!: () => void
  const free = new Promise<void>((resolve) => (setFree = resolve))
  start({ firewall: { rules, resyncMs: 1000, free } })
  await ready()
  await vi.advanceTimersByTimeAsync(1000)
  expect([ensured, again]).toEqual([1, 0])
  setFree()
  await vi.advanceTimersByTimeAsync(0)
  expect(again).toBe(1)

  ownership.hasSuccessor = true
  await vi.advanceTimersByTimeAsync(59_000)
  expect(ensured).toBe(1)
  await vi.advanceTimersByTimeAsync(3_000)
  expect(ensured).toBeGreaterThan(1)
  ownership.hasSuccessor = false
  await ownership.release()
  const before = ensured
  await vi.advanceTimersByTimeAsync(120_000)
  expect(ensured).toBe(before)
})
it('delays neither peers nor subnet.env nor readiness while the rules cannot be set, and reports that', async () => {
  lock.holder = 'flock (pid 7)'
  let set!: () => void
  const rules = {
    raise: () => new Promise<void>((resolve) => (set = resolve)),
    ensure: async () => ({ repaired: [], failures: [] }),
  }
  start({ firewall: { rules, resyncMs: 1000 } })
  await until(() => logged(/Running backend/), 15_000)
  await ready()
  expect([existsSync(subnetFile()), readiness()]).toEqual([true, true])
  const why = 'rules are not set yet: they wait for the xtables lock, which flock (pid 7) has'
  await until(
    () =>
      logged(/^W The firewall's rules are not set yet: .* flock \(pid 7\) has; everything else goes on without them$/),
    5_000,
  )
  expect(JSON.stringify(await nodeStatus())).toContain(why)
  store.put('10.5.0.192-26', value('192.0.2.9'))
  await until(() => dataPaths[0]!.applied.at(-1)!.length === 1)
  set()
  await vi.advanceTimersByTimeAsync(2_000)
  expect(JSON.stringify(await nodeStatus())).not.toContain(`the firewall's rules are not set yet`)
})

it('ends a node that starts, but not a node that forwards already, if the rules cannot be set', async () => {
  const failure = new WeftError('COMMAND', 'no nftables support: nft is not installed')
  const failures = [failure]
  let canBeSet = false
  const ensure = async () => ({ repaired: [], failures: canBeSet ? [] : failures })
  const raise = async (): Promise<never> => {
    throw failure
  }
  start({ firewall: { rules: { raise, ensure }, resyncMs: 1000 } })
  expect(await ended).toBe(failure)

  // The firewall fails only after all other parts of the node have started.
  const raiseLate = () => pause(stopping.signal, 12_000).then(raise)
  restart()
  start({ firewall: { rules: { raise: raiseLate, ensure }, resyncMs: 1000 } })
  await until(() => logged(/Running backend/), 15_000)
  await ready()
  await until(() => logged(/^E no nftables support/), 5_000)
  await vi.advanceTimersByTimeAsync(2_000)
  expect(stopping.signal.aborted).toBe(false)
  expect(JSON.stringify(await nodeStatus())).toContain('no nftables support')
  canBeSet = true
  await vi.advanceTimersByTimeAsync(2_000)
  expect(JSON.stringify(await nodeStatus())).not.toContain('"no nftables support')
  expect(dataPaths.at(-1)!.closed).toBe(false)
})

it.each([true, false])('with the last known state (%s) a node waits as long as a running one', async (forwards) => {
  const failure = new WeftError('COMMAND', 'no nftables support: nft is not installed')
  const raise = async (): Promise<never> => {
    throw failure
  }
  const rules = { raise, ensure: async () => ({ repaired: [], failures: [failure] }) }
  const node = {
    firewall: { rules, resyncMs: 1000 },
    lease: { subnet: {} },
    log: rigLog,
    signal: stopping.signal,
  } as unknown as Node
  const raising = raiseOrLate(node, forwards)
  if (forwards) await raising
  else await expect(raising).rejects.toBe(failure)
  expect(node.rulesTrouble).toBe(forwards ? failure.message : undefined)
})

it('ends with the daemon even if the rules are never set', async () => {
  const rules = { ensure: async () => ({ repaired: [], failures: [] }) }
  const reason = new Error('enough')
  const firewall = { rules: { ...rules, raise: () => rejectsWith(stopping.signal) }, resyncMs: 1000 }
  start({ firewall })
  await until(() => logged(/Running backend/), 15_000)
  stopping.abort(reason)
  expect(await ended).toBe(reason)
})
const rejectsWith = (signal: AbortSignal): Promise<void> =>
  new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason as Error)))

// firewall.test.ts - when the rules are looked at.

import { expect, it, vi } from 'vitest'
import { createBell } from '../../../src/host/bell.ts'
import { installRig, dataPaths, lines, ready, start } from '../../support/node-rig.ts'

installRig()

it('mends the rules at a pace of their own: however many they were, the device is looked at when it changes', async () => {
  let raised = 0
  const rules = {
    raise: async () => void raised++,
    ensure: async () => Array.from({ length: 100 }, () => 'rules of FLANNEL-FWD'),
  }
  const doubt = createBell()
  start({ firewall: { rules, resyncMs: 1000 } }, doubt)
  await ready()
  expect(raised).toBe(1)
  await vi.advanceTimersByTimeAsync(1000)
  expect(lines.filter((line) => line.startsWith('W Repaired: rules'))).toHaveLength(7)
  for (const round of [1, 2, 3]) {
    dataPaths[0]!.mended = ['flannel0 was down']
    doubt.ring()
    await vi.advanceTimersByTimeAsync(250)
    expect(lines.filter((line) => line.startsWith('W Repaired: flannel0'))).toHaveLength(round)
  }
})

// iptables.test.ts - the abilities of iptables by its version.

import { expect, it } from 'vitest'
import { isIptables162, isNfTables } from '../../../src/host/iptables.ts'

it.each([
  ['iptables v1.8.9 (nf_tables)', true],
  ['iptables v1.8.9 (legacy)', true],
  ['iptables v2.0.0', true],
  ['iptables v10.0.0', true],
  ['iptables v1.16.0', true],
  ['iptables v1.6.10', true],
  ['iptables v1.6.2', true],
  ['iptables v1.6.1', false],
  ['iptables v1.4.21', false],
  ['', false],
])('%s knows --random-fully and --wait: %s', (text, knows) => {
  expect(isIptables162(text)).toBe(knows)
})

it.each([
  ['iptables v1.8.9 (nf_tables)', true],
  ['iptables v1.8.9 (legacy)', false],
  ['iptables v1.6.2', false],
])('%s uses nf_tables: %s', (text, isNew) => {
  expect(isNfTables(text)).toBe(isNew)
})

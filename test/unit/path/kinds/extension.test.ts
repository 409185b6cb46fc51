// extension.test.ts - how a command of the extension backend is read.

import { afterEach, expect, it, vi } from 'vitest'
import { wordsOf } from '../../../../src/path/kinds/extension.ts'
import { readSettings } from '../../../../src/control/config/backend-options.ts'

afterEach(() => vi.unstubAllEnvs())

it.each([
  ['', []],
  ['  /bin/true  ', ['/bin/true']],
  ["post one 'two three'", ['post', 'one', "'two", "three'"]],
  ['a; rm -rf / && $(b) `c` | d', ['a;', 'rm', '-rf', '/', '&&', '$(b)', '`c`', '|', 'd']],
  ['add $SUBNET ${PUBLIC_IP}x $NONE. $', ['add', '10.5.2.0/24', '192.0.2.2x', '.', '$']],
  // A value stays one word, whatever is in it.
  ['say $SPACED', ['say', 'two words']],
])('%j is %j', (command, words) => {
  vi.stubEnv('SPACED', 'two words')
  vi.stubEnv('NONE', undefined)
  expect(wordsOf(command, { SUBNET: '10.5.2.0/24', PUBLIC_IP: '192.0.2.2' })).toEqual(words)
})

it('reads its commands whatever the case of their names, and refuses what is no text', () => {
  const commands = Object.entries(readSettings('extension', { type: 'extension', subnetaddcommand: 'add' }))
  expect(commands.map(([name, command]) => [name, command.reveal()])).toEqual([
    ['PreStartupCommand', ''],
    ['PostStartupCommand', ''],
    ['SubnetAddCommand', 'add'],
    ['SubnetRemoveCommand', ''],
  ])
  expect(() => readSettings('extension', { prestartupcommand: ['a', 'b'] })).toThrow(
    'Backend.PreStartupCommand is ["a","b"]',
  )
})

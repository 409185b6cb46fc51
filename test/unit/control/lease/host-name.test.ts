// host-name.test.ts - the host name in a claim, with any content.

import { describe, expect, it } from 'vitest'
import { claimText, hostNameIn, shortened } from '../../../../src/control/lease/host-name.ts'

it('the host name is read as the host wrote it', () => {
  expect(claimText('host1', 'x')).toBe('{"Hostname":"host1","ID":"x"}')
  expect(hostNameIn(claimText('host1', 'x'))).toBe('host1')
  expect(hostNameIn('{"Hostname":" host1 "}')).toBe('host1')
})

it.each(['', 'null', '3', '[]', '{}', 'junk', '{"Hostname":3}', '{"Hostname":""}', '{"Hostname":"  "}', '"host1"'])(
  'the host name is undefined if the claim is %j',
  (claim) => expect(hostNameIn(claim)).toBeUndefined(),
)

describe('a host name that is too long', () => {
  it('is shortened at its end', () => {
    expect(shortened('x'.repeat(253))).toBe('x'.repeat(253))
    expect(shortened('x'.repeat(254))).toBe(`${'x'.repeat(252)}…`)
    expect(hostNameIn(claimText('x'.repeat(60_000), ''))).toBe(`${'x'.repeat(252)}…`)
  })

  it('is not read from text that is longer than any claim', () => {
    const claim = (length: number): string => {
      const without = claimText('host1', '').length
      return claimText('host1', 'y'.repeat(length - without))
    }
    expect(hostNameIn(claim(65_536))).toBe('host1')
    expect(hostNameIn(claim(65_537))).toBeUndefined()
  })
})

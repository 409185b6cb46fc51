// wireguard-handshakes.test.ts - our handshakes with wireguard-go and with the kernel's device: as initiator and responder, with a right
// and a wrong psk, with each message lost, with cookies on both sides, while either side moves, and repeatedly.

import { join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import { output } from '../../lab/command.ts'
import { EVENT_MS, packageRoot, WIREGUARD_APART } from '../../lab/lab.ts'
import { HOSTS, needs } from '../support/needs.ts'
import type { WireguardResult } from '../support/wireguard-probe.ts'
import { kernelHasWireguard } from '../support/wireguard.ts'

needs(HOSTS, 'wg', 'wireguard-go')

const IS_LONG = process.env['WEFT_LONG'] === '1'
/** The limit of a scenario; a simulated day took five minutes. */
const LIMIT_MS = (IS_LONG ? 30 : 2) * EVENT_MS

/** Runs a scenario in a namespace of its own, which ends with it. */
async function probeBy(other: string, scenario: string): Promise<WireguardResult> {
  const script = join(packageRoot, 'dist/test/support/wireguard-probe.js')
  const command = ['unshare', '--net', ...WIREGUARD_APART, process.execPath, script, scenario, other]
  return JSON.parse(await output(command, { timeoutMs: LIMIT_MS })) as WireguardResult
}

const CROSSED = { toUs: 'from there', toOther: 'from here' }
const FRESH = { attempts: 0, stale: 0, unconfirmed: 0 }

describe.each(['wireguard-go', 'kernel'])('with %s', { timeout: 2 * LIMIT_MS + EVENT_MS }, (other) => {
  const probe = (scenario: string): Promise<WireguardResult> => probeBy(other, scenario)
  beforeEach(async ({ skip }) => {
    skip(other === 'kernel' && !(await kernelHasWireguard()), 'no WireGuard in this kernel')
  })

  it.each([
    ['initiator', [true]],
    ['responder', [false]],
  ])('data crosses in both directions if we are the %s', async (scenario, initiated) => {
    const result = await probe(scenario)
    expect(result).toMatchObject({ ...CROSSED, initiated, hasHandshake: true, state: FRESH })
    expect(result.state!.at).toBeGreaterThan(0)
  })

  it('a psk is optional', async () => {
    expect(await probe('no psk')).toEqual(CROSSED)
  })

  it('a wrong psk gives neither side a session, and both detect it', async () => {
    const { initiated, state, hasHandshake } = await probe('wrong psk')
    expect(initiated!.every((isOurs) => !isOurs)).toBe(true) // our response, which the other side did not use
    expect(hasHandshake).toBe(false)
    expect(state).toMatchObject({ failure: 'not-authentic', stale: 0 })
    expect(state!.unconfirmed).toBeGreaterThanOrEqual(2)
  })

  it('a lost message is repeated: our initiation, its response, our keepalive, our response', async () => {
    const results = [await probe('lost initiation'), await probe('lost response'), await probe('lost keepalive')]
    expect(results).toMatchObject([
      { ...CROSSED, sent: [1, 1], initiated: [true] },
      { ...CROSSED, sent: [1, 1], received: [2, 2], initiated: [true] },
      // The host completes no handshake before a packet encrypted with the keys arrives.
      { ...CROSSED, initiated: [true], hasHandshake: false },
    ])
    expect(await probe('lost answer')).toMatchObject({
      ...CROSSED,
      sent: [2, 2],
      received: [1, 1],
      initiated: [false, false],
      state: FRESH,
    })
  })

  it('new keys replace old ones as often as they are requested', async () => {
    const five = Array.from({ length: 5 }, () => true)
    expect(await probe('rekeying')).toMatchObject({ ...CROSSED, sent: [1, 1, 1, 1, 1], initiated: five, state: FRESH })
  })

  it.each([['an hour', 30], ...(IS_LONG ? ([['a day', 720]] as const) : [])] as const)(
    'both sides request new keys in turn, every two minutes of %s, with any message lost',
    async (scenario, times) => {
      const { initiated, ...others } = await probe(scenario)
      expect(others).toMatchObject({ ...CROSSED, state: FRESH })
      for (const isOurs of [true, false])
        expect(initiated!.filter((each) => each === isOurs).length).toBeGreaterThanOrEqual(times / 2)
    },
  )

  it('both can start simultaneously', async () => {
    expect(await probe('both at once')).toMatchObject({ ...CROSSED, state: FRESH })
  })

  it('each side follows the other one to a new address', async () => {
    expect(await probe('we move')).toMatchObject({ ...CROSSED, roamed: [] })
    expect(await probe('it moves')).toMatchObject({ initiated: [true, false], roamed: ['127.0.0.1:51999'] })
  })

  it('the other side is accepted with the cookie that it gets from us', async () => {
    const ours = await probe('we are loaded')
    expect(ours).toMatchObject({ ...CROSSED, received: [1, 1], initiated: [false] })
    expect(ours.cookiesSent).toBeGreaterThan(0)
  })

  // The speed of the machine decides what overloads wireguard-go, so this is one of the long tests that are run by hand.
  it.each(IS_LONG ? ['it is loaded'] : [])('the other side accepts us with its cookie: %s', async (what) => {
    const its = await probe(what)
    expect(its).toMatchObject({ ...CROSSED, initiated: [true] })
    expect(its.proved![0]).toBe(false)
    expect(its.proved!.at(-1)).toBe(true)
  })
})

// wireguard-handshakes.test.ts - our handshakes with wireguard-go, and with the kernel's device: as the one that asks and the one that answers, with psk and a wrong one,
// with each message lost, with cookies on both sides, while either moves, and again and again.

import { join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import { output } from '../../lab/command.ts'
import { EVENT_MS, packageRoot, WIREGUARD_APART } from '../../lab/lab.ts'
import { HOSTS, needs } from '../support/needs.ts'
import type { WireguardResult } from '../support/wireguard-probe.ts'
import { kernelHasWireguard } from '../support/wireguard.ts'

needs(HOSTS, 'wg', 'wireguard-go')

const IS_LONG = process.env['WEFT_LONG'] === '1'
/** Of a scenario: a day's took five minutes. */
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
  ])('data crosses both ways where we are the %s', async (scenario, initiated) => {
    const result = await probe(scenario)
    expect(result).toMatchObject({ ...CROSSED, initiated, hasHandshake: true, state: FRESH })
    expect(result.state!.at).toBeGreaterThan(0)
  })

  it('a psk is not needed', async () => {
    expect(await probe('no psk')).toEqual(CROSSED)
  })

  it('another psk gives neither side a session, and both can tell', async () => {
    const { initiated, state, hasHandshake } = await probe('wrong psk')
    expect(initiated!.every((isOurs) => !isOurs)).toBe(true) // what we answered, and nobody used
    expect(hasHandshake).toBe(false)
    expect(state).toMatchObject({ failure: 'not-authentic', stale: 0 })
    expect(state!.unconfirmed).toBeGreaterThanOrEqual(2)
  })

  it('a lost message is made good: our initiation, its response, our keepalive, our answer', async () => {
    const results = [await probe('lost initiation'), await probe('lost response'), await probe('lost keepalive')]
    expect(results).toMatchObject([
      { ...CROSSED, sent: [1, 1], initiated: [true] },
      { ...CROSSED, sent: [1, 1], heard: [2, 2], initiated: [true] },
      // It has no handshake before a packet comes under the keys.
      { ...CROSSED, initiated: [true], hasHandshake: false },
    ])
    expect(await probe('lost answer')).toMatchObject({
      ...CROSSED,
      sent: [2, 2],
      heard: [1, 1],
      initiated: [false, false],
      state: FRESH,
    })
  })

  it('new keys follow old ones, as often as they are wanted', async () => {
    const five = Array.from({ length: 5 }, () => true)
    expect(await probe('rekeying')).toMatchObject({ ...CROSSED, sent: [1, 1, 1, 1, 1], initiated: five, state: FRESH })
  })

  it.each([['an hour', 30], ...(IS_LONG ? ([['a day', 720]] as const) : [])] as const)(
    'each asks for new keys in turn, every two minutes of %s, whatever is lost',
    async (scenario, times) => {
      const { initiated, ...others } = await probe(scenario)
      expect(others).toMatchObject({ ...CROSSED, state: FRESH })
      for (const isOurs of [true, false])
        expect(initiated!.filter((each) => each === isOurs).length).toBeGreaterThanOrEqual(times / 2)
    },
  )

  it('both may begin at once', async () => {
    expect(await probe('both at once')).toMatchObject({ ...CROSSED, state: FRESH })
  })

  it('each is found where it moves to', async () => {
    expect(await probe('we move')).toMatchObject({ ...CROSSED, roamed: [] })
    expect(await probe('it moves')).toMatchObject({ initiated: [true, false], roamed: ['127.0.0.1:51999'] })
  })

  it('is let in by the cookie that it gets from us', async () => {
    const ours = await probe('we are loaded')
    expect(ours).toMatchObject({ ...CROSSED, heard: [1, 1], initiated: [false] })
    expect(ours.cookiesSent).toBeGreaterThan(0)
  })

  // How much loads wireguard-go depends on how quick the machine is at this moment: with the long tests, which are tried by hand.
  it.each(IS_LONG ? ['it is loaded'] : [])('lets us in by its cookie: %s', async (what) => {
    const its = await probe(what)
    expect(its).toMatchObject({ ...CROSSED, initiated: [true] })
    expect(its.proved![0]).toBe(false)
    expect(its.proved!.at(-1)).toBe(true)
  })
})

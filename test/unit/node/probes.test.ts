// probes.test.ts - peers are asked by way of the data path there is, and the node tells which of them answer.

import { expect, it, vi } from 'vitest'
import type { OpenEcho } from '../../../src/host/echo.ts'
import { formatIpv4, parseIpv4 } from '../../../src/net/ipv4.ts'
import {
  dataPaths,
  inTurns,
  installRig,
  logged,
  nodeStatus,
  own,
  ready,
  start,
  store,
  value,
} from '../../support/node-rig.ts'

installRig()

const opened: { source: string; asked: string[]; closed: boolean }[] = []
/** Every address but these answers. */
let silent: string[] = []
const openEcho: OpenEcho = (source, onAnswer) => {
  const echo = { source: formatIpv4(source), asked: [] as string[], closed: false }
  opened.push(echo)
  return {
    send(to, sequence) {
      const address = formatIpv4(to)
      echo.asked.push(address)
      if (address === '10.5.0.192')
        throw Object.assign(new Error('sendto: network is unreachable'), { code: 'ENETUNREACH' })
      if (!silent.includes(address)) queueMicrotask(() => onAnswer(to, sequence, 3))
    },
    close: () => void (echo.closed = true),
  }
}

it('tells stored, programmed and answering peers apart, and what is asked again when one falls silent', async () => {
  opened.length = 0
  silent = []
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start({ openEcho })
  await ready()
  const peer = async () => (await nodeStatus()).peers!
  let now = await peer()
  const look = (isSo: () => boolean): Promise<void> =>
    inTurns(() => {
      void peer().then((newest) => (now = newest))
      return isSo()
    })
  await look(() => now.answering === 1)
  expect(now).toMatchObject({ stored: 1, programmed: 1, probed: 1, probeSeconds: 10, whole: 1 })
  expect(now.list[0]).toMatchObject({ state: 'answering', roundTripMs: 3, lossPercent: 0 })
  expect(opened.map(({ source }) => source)).toEqual([own().split('-')[0]])
  silent = ['10.5.0.64']
  await look(() => now.answering === 0)
  expect(now).toMatchObject({ programmed: 1, probed: 1, whole: 0 })
  expect(now.list[0]!.state).toBe('programmed')
})

it('asks from the address that the node has, after it moved too', async () => {
  opened.length = 0
  start({ openEcho })
  await ready()
  await inTurns(() => opened.length === 1)
  const before = own()
  store.remove(before)
  store.put(before, value('192.0.2.9'))
  await inTurns(() => opened.length === 2)
  expect(opened.map(({ source, closed }) => [source, closed])).toEqual([
    [before.split('-')[0], true],
    [own().split('-')[0], false],
  ])
})

it('goes on when the kernel will not send, and tells that nothing came', async () => {
  opened.length = 0
  store.put('10.5.0.192-26', value('192.0.2.2'))
  start({ openEcho })
  await ready()
  await inTurns(() => (opened[0]?.asked.length ?? 0) > 1)
  expect((await nodeStatus()).peers!.list[0]!.state).toBe('programmed')
})

it('says once where it is not allowed, and is off', async () => {
  let tries = 0
  start({
    openEcho: () => {
      tries++
      throw Object.assign(new Error('socket ICMP: Operation not permitted'), { code: 'EPERM' })
    },
  })
  await ready()
  await inTurns(() => logged(/I Peers are not asked whether they answer \(socket ICMP: Operation not permitted\)/))
  await vi.advanceTimersByTimeAsync(60_000)
  expect([tries, (await nodeStatus()).peers!.answering]).toEqual([1, null])
})

it('waits for an address that is not there yet', async () => {
  opened.length = 0
  let tries = 0
  start({
    openEcho: (...args) => {
      if (++tries < 3) throw Object.assign(new Error('bind ICMP'), { code: 'EADDRNOTAVAIL' })
      return openEcho(...args)
    },
  })
  await ready()
  await inTurns(() => opened.length === 1)
  expect([tries, dataPaths.length, parseIpv4(opened[0]!.source)]).toEqual([3, 1, expect.any(Number)])
})

it('asks whom a later change made a peer, and nobody that went', async () => {
  opened.length = 0
  silent = []
  start({ openEcho })
  await ready()
  await inTurns(() => opened.length === 1)
  const key = own() === '10.5.0.64-26' ? '10.5.0.128-26' : '10.5.0.64-26'
  store.put(key, value('192.0.2.2'))
  await inTurns(() => opened[0]!.asked.length > 0)
  store.remove(key)
  await inTurns(() => dataPaths[0]!.applied.at(-1)!.length === 0)
  await vi.advanceTimersByTimeAsync(2_000)
  const before = opened[0]!.asked.length
  await vi.advanceTimersByTimeAsync(60_000)
  expect(opened[0]!.asked.length).toBe(before)
  store.put(key, value('192.0.2.2'))
  await inTurns(() => opened[0]!.asked.length > before)
})

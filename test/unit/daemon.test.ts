// daemon.test.ts - a node's start, in its order, and its end.

import { readFileSync } from 'node:fs'
import { describe, expect, it, vi } from 'vitest'
import { WeftError } from '../../src/base/errors.ts'
import { ALONE } from '../support/alone.ts'
import {
  installRig,
  dataPaths,
  ended,
  lines,
  ours,
  own,
  ownership,
  ready,
  refuseToOpen,
  restart,
  start,
  stopping,
  store,
  subnetFile,
  value,
} from '../support/node-rig.ts'

installRig()

it('acquires a lease, opens the data path, writes subnet.env and reports ready, in this order', async () => {
  start()
  await ready()
  const [first] = dataPaths
  expect(first!.subnet).toBe(own())
  expect(lines.filter((line) => /Allocated|Wrote|ready|Running/.test(line)).map((line) => line.slice(0, 14))).toEqual([
    'I Allocated le',
    'I Wrote subnet',
    'I flannel is r',
    'I Running back',
  ])
  const address = own().replace(/(\d+)-26$/, (_text, last) => String(Number(last) + 1))
  expect(readFileSync(subnetFile(), 'utf8')).toBe(
    `FLANNEL_NETWORK=10.5.0.0/24\nFLANNEL_SUBNET=${address}/26\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n`,
  )
  expect(first!.applied).toEqual([[]])
})

it('waits for a store that is down at the start, and fails on a mistake that an operator must repair', async () => {
  store.setDown(true)
  start()
  await vi.advanceTimersByTimeAsync(30_000)
  expect(lines.filter((line) => line.includes('failed to acquire lease: the store is down')).length).toBeLessThan(8)
  store.setDown(false)
  await vi.advanceTimersByTimeAsync(1000)
  await ready()
  stopping.abort(new Error('enough'))
  await ended

  for (const last of [64, 128, 192]) store.put(`10.5.0.${last}-26`, value(`192.0.2.${last}`))
  restart()
  start()
  expect(await ended).toMatchObject({ code: 'OUT_OF_SUBNETS' })
})

describe('a lease that is new', () => {
  const keys = async () => (await store.list(new AbortController().signal)).entries.map(({ key }) => key)
  it('is not written if the host lacks a prerequisite of the data path', async () => {
    const refusal = new WeftError('PORT_IN_USE', 'a program has the port')
    const permit = () => Promise.reject(refusal)
    start({}, undefined, { permit })
    expect(await ended).toMatchObject({ message: 'Error registering network: a program has the port' })
    const check = () => Promise.reject(new WeftError('COMMAND', 'no nft'))
    const rules = { check, raise: async () => {}, ensure: async () => ({ repaired: [], failures: [] }) }
    restart()
    start({ firewall: { rules, resyncMs: 1000 } })
    expect(await ended).toMatchObject({ message: 'no nft' })
    expect(await keys()).toEqual([])
  })

  it('is returned to the store if the data path cannot be opened', async () => {
    refuseToOpen(new WeftError('PORT_IN_USE', 'a program took the port'))
    start()
    expect(await ended).toMatchObject({ message: 'Error registering network: a program took the port' })
    expect(await keys()).toEqual([])
    expect(lines.at(-1)).toMatch(/The new lease is given back/)
  })

  it('is returned to the store, and the data path is closed, if the rules cannot be set', async () => {
    const raise = () => Promise.reject(new WeftError('COMMAND', 'no rules'))
    start({ firewall: { rules: { raise, ensure: async () => ({ repaired: [], failures: [] }) }, resyncMs: 1000 } })
    expect(await ended).toMatchObject({ message: 'no rules' })
    expect(await keys()).toEqual([])
    expect(dataPaths[0]!.closed).toBe(true)
  })

  it('is kept if the node had it before, another process forwards, or the process is stopped', async () => {
    store.put('10.5.0.64-26', ours)
    refuseToOpen(new WeftError('PORT_IN_USE', 'a program took the port'))
    start()
    await ended
    expect(await keys()).toEqual(['10.5.0.64-26'])
    store.remove('10.5.0.64-26')
    restart()
    start({}, undefined, { handover: { ...ALONE, isOnLoan: true } })
    await ended
    expect(await keys()).toHaveLength(1)
  })

  it('is kept if a successor has connected before the data path or the rules fail', async () => {
    refuseToOpen(new WeftError('PORT_IN_USE', 'a program took the port'))
    start()
    ownership.hasSuccessor = true
    expect(await ended).toMatchObject({ message: 'Error registering network: a program took the port' })
    expect(await keys()).toHaveLength(1)
    store.remove(own())
    refuseToOpen()
    restart()
    const raise = async () => {
      ownership.hasSuccessor = true
      throw new WeftError('COMMAND', 'no rules')
    }
    start({ firewall: { rules: { raise, ensure: async () => ({ repaired: [], failures: [] }) }, resyncMs: 1000 } })
    expect(await ended).toMatchObject({ message: 'no rules' })
    expect(await keys()).toHaveLength(1)
  })
})

it('ends with the reason of the stop after all loops have ended and the data path is closed', async () => {
  start()
  await ready()
  const reason = new Error('stop')
  stopping.abort(reason)
  expect(await ended).toBe(reason)
  expect(dataPaths[0]!.closed).toBe(true)
  expect(vi.getTimerCount()).toBe(0)
})

it('ends with a defect of one loop, and stops all other loops', async () => {
  start()
  await ready()
  const defect = new Error('a defect')
  store.update = async () => {
    throw defect
  }
  const before = own()
  store.put(before === '10.5.0.64-26' ? '10.5.0.128-26' : '10.5.0.64-26', ours)
  store.remove(before)
  expect(await ended).toBe(defect)
  expect(stopping.signal.reason).toBe(defect)
  expect(dataPaths[0]!.closed).toBe(true)
})

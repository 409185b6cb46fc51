// service-manager.test.ts - which notifications the service manager gets, and when.

import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import {
  installRig,
  alive,
  dataPaths,
  own,
  ready,
  refuseToOpen,
  start,
  store,
  told,
  trouble,
  value,
} from '../../../support/node-rig.ts'

installRig()

it('serves the watchdog while the store is dead and while the device cannot be opened', async () => {
  start()
  await ready()
  store.setDown(true)
  refuseToOpen(new WeftError('DEVICE', 'no device today'))
  dataPaths[0]!.die('gone')
  await vi.advanceTimersByTimeAsync(300_000)
  expect(trouble()).toMatch(/^the data path is down; the etcd store does not answer/)
  expect(alive).toBe(20)
  expect(told.at(-1)).toMatch(
    /^impaired by its data path and its store: the data path is down; .*; subnet 10\.5\.0\.\d+\/26, 0 peers, etcd store unreachable$/,
  )
})

it('reports its state to the service manager when the state changes', async () => {
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(10_000)
  const subnet = own().replace('-', '/')
  store.put(own() === '10.5.0.64-26' ? '10.5.0.128-26' : '10.5.0.64-26', value('192.0.2.2'))
  await vi.advanceTimersByTimeAsync(10_000)
  store.setDown(true)
  await vi.advanceTimersByTimeAsync(90_000)
  store.setDown(false)
  await vi.advanceTimersByTimeAsync(90_000)
  expect(told.slice(-4)).toEqual([
    `subnet ${subnet}, 0 peers, etcd store reachable`,
    `subnet ${subnet}, 1 peer, etcd store reachable`,
    `impaired by its store: the etcd store does not answer; subnet ${subnet}, 1 peer, etcd store unreachable`,
    `subnet ${subnet}, 1 peer, etcd store reachable`,
  ])
})

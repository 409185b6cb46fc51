// node.test.ts - the reports of a node when its state changes.

import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../src/base/errors.ts'
import {
  installRig,
  dataPaths,
  readiness,
  ready,
  refuseToOpen,
  start,
  store,
  trouble,
  until,
} from '../../support/node-rig.ts'

installRig()

it('reports that it is ready, and the problem while the data path or the store is down', async () => {
  expect([readiness(), trouble()]).toEqual([false, 'starting'])
  start()
  await ready()
  expect([readiness(), trouble()]).toEqual([true, undefined])
  refuseToOpen(new WeftError('DEVICE', 'no device today'))
  dataPaths[0]!.die('gone')
  await until(() => trouble() !== undefined)
  expect([readiness(), trouble()]).toEqual([true, 'the data path is down']) // ready once is ready, as with flanneld
  refuseToOpen()
  await until(() => trouble() === undefined, 5_000)
  store.setDown(true)
  await vi.advanceTimersByTimeAsync(110_000)
  expect(trouble()).toBe('the etcd store does not answer')
  await vi.advanceTimersByTimeAsync(75_000)
  expect(trouble()).toBe('the etcd store does not answer; the leases may be out of date')
  expect(readiness()).toBe(true)
  store.setDown(false)
  await until(() => trouble() === undefined, 120_000)
  expect(readiness()).toBe(true)
})

// unix-socket.test.ts - a listener that cannot accept a connection now tries again later without a busy loop; the last message before the
// end of a connection; descriptors that the kernel withholds.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { execute } from '../../../lab/command.ts'
import { packageRoot } from '../../../lab/lab.ts'
import { addon } from '../../../src/host/addon.ts'
import { connect, listen } from '../../../src/host/unix-socket.ts'

let folder: string
beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'weft-socket-'))))
afterEach(() => {
  vi.useRealTimers()
  vi.restoreAllMocks()
  rmSync(folder, { recursive: true })
})

/** Runs the event loop once, in which a watched readable descriptor is reported. */
async function turns(count: number): Promise<void> {
  for (let round = 0; round < count; round++) await turn()
}

it('retries a few times a second while no descriptor is free, and then accepts', async () => {
  const path = join(folder, 'socket')
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  const listener = listen(path)
  const refused = Object.assign(new Error('accept4: EMFILE'), { code: 'EMFILE' })
  let isFull = true
  const accept = addon.acceptUnix
  const accepting = vi.spyOn(addon, 'acceptUnix').mockImplementation((fd) => {
    if (isFull) throw refused
    return accept(fd)
  })
  const other = connect(path)!
  const signal = AbortSignal.timeout(60_000)
  while (accepting.mock.calls.length === 0) await turn()
  for (let looks = 1; looks < 4; looks++) {
    await turns(100)
    expect(accepting).toHaveBeenCalledTimes(looks)
    vi.advanceTimersByTime(99)
    await turns(100)
    expect(accepting).toHaveBeenCalledTimes(looks)
    vi.advanceTimersByTime(1)
    while (accepting.mock.calls.length === looks) await turn()
  }
  isFull = false
  vi.advanceTimersByTime(100)
  const connection = await listener.accept(signal)
  other.send('it is me')
  expect(await connection.receive(signal)).toMatchObject({ text: 'it is me' })
  for (const each of [connection, other, listener]) each.close()
})

it('does not retry after it was closed', async () => {
  const path = join(folder, 'socket')
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  const listener = listen(path)
  const accepting = vi.spyOn(addon, 'acceptUnix').mockImplementation(() => {
    throw new Error('accept4: EMFILE')
  })
  const other = connect(path)!
  while (accepting.mock.calls.length === 0) await turn()
  expect(vi.getTimerCount()).toBe(1)
  listener.close()
  accepting.mockClear()
  expect(vi.getTimerCount()).toBe(0)
  await turns(100)
  expect(accepting).not.toHaveBeenCalled()
  other.close()
})

it('receives the last message of a process that closed the connection with unread messages', async () => {
  const path = join(folder, 'socket')
  const listener = listen(path)
  const signal = AbortSignal.timeout(60_000)
  const receiver = connect(path)!
  const sender = await listener.accept(signal)
  receiver.send('nobody reads this')
  sender.send('the last message')
  sender.close()
  expect(await receiver.receive(signal)).toMatchObject({ text: 'the last message' })
  expect(await receiver.receive(signal)).toBeUndefined()
  for (const each of [receiver, listener]) each.close()
})

it('reads no further message after the kernel withheld descriptors', async () => {
  const path = join(folder, 'socket')
  const listener = listen(path)
  const signal = AbortSignal.timeout(60_000)
  const receiving = vi.spyOn(addon, 'receiveParcel').mockImplementation(() => {
    throw Object.assign(new Error('recvmsg: EMSGSIZE'), { code: 'EMSGSIZE' })
  })
  const sender = connect(path)!
  const receiver = await listener.accept(signal)
  sender.send('cut')
  expect(await receiver.receive(signal)).toBeUndefined()
  expect(receiver.hasLostDescriptors).toBe(true)
  expect(receiving).toHaveBeenCalledTimes(1)
  for (const each of [sender, receiver, listener]) each.close()
})

it('says that the kernel withheld descriptors, which is not the death of the sender', async () => {
  // A process without free descriptors gets as few descriptors as a process whom AppArmor or SELinux refuses them (scm_detach_fds in the
  // kernel's net/core/scm.c).
  const path = JSON.stringify(join(folder, 'socket'))
  const program = `
    import { openSync } from 'node:fs'
    import { connect, listen } from ${JSON.stringify(join(packageRoot, 'dist/src/host/unix-socket.js'))}
    const listener = listen(${path})
    const sender = connect(${path})
    const signal = AbortSignal.timeout(60_000)
    const receiver = await listener.accept(signal)
    sender.send('whole', [0])
    const first = await receiver.receive(signal)
    const seen = [first.text, first.fds.length, receiver.hasLostDescriptors]
    try {
      for (;;) openSync('/dev/null')
    } catch (error) {
      seen.push(error.code)
    }
    sender.send('cut', [0, 1])
    seen.push((await receiver.receive(signal)) ?? 'end', receiver.hasLostDescriptors)
    console.log(JSON.stringify(seen))
    process.exit()`
  const run = ['prlimit', '--nofile=64', process.execPath, '--input-type=module', '--eval', program]
  const { code, stdout, stderr } = await execute(run)
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
  expect(JSON.parse(stdout)).toEqual(['whole', 1, false, 'EMFILE', 'end', true])
})

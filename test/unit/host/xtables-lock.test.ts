// xtables-lock.test.ts - finds the process that holds a lock in /proc/locks.

import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { xtablesLockHolder } from '../../../src/host/xtables-lock.ts'

let folder: string
beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'weft-xtables-'))))
afterEach(() => rmSync(folder, { recursive: true }))

it('names the process that holds the lock, and none if it is free', async () => {
  const file = join(folder, 'xtables.lock')
  expect(await xtablesLockHolder(file)).toBeUndefined()
  const child = spawn('flock', [file, 'sh', '-c', 'echo locked; exec cat'], { stdio: ['pipe', 'pipe', 'inherit'] })
  await new Promise((resolve) => child.stdout.once('data', resolve))
  expect(await xtablesLockHolder(file)).toBe(`pid ${child.pid} (flock)`)
  const ended = new Promise((resolve) => child.once('exit', resolve))
  child.stdin.end()
  await ended
  expect(await xtablesLockHolder(file)).toBeUndefined()
})

it('ignores processes that only wait or have ended, and does not name one of another PID namespace', async () => {
  const file = join(folder, 'xtables.lock')
  writeFileSync(file, '')
  const line = (how: string): string => `1: ${how} 00:1b:${statSync(file).ino} 0 EOF\n`
  const holder = async (...how: string[]): Promise<string | undefined> => {
    writeFileSync(join(folder, 'locks'), `junk\n${how.map(line).join('')}`)
    return xtablesLockHolder(file, folder)
  }
  expect(await holder('-> FLOCK  ADVISORY  WRITE 12')).toBeUndefined()
  expect(await holder('POSIX  ADVISORY  WRITE 12', 'FLOCK  ADVISORY  READ 12')).toBeUndefined()
  expect(await holder('FLOCK  ADVISORY  WRITE 0')).toBe('a process of another pid namespace')
  expect(await holder('FLOCK  ADVISORY  WRITE 12')).toBe('pid 12')
  mkdirSync(join(folder, '12'))
  writeFileSync(join(folder, '12', 'comm'), 'kube-proxy\n')
  expect(await holder('FLOCK  ADVISORY  WRITE 12')).toBe('pid 12 (kube-proxy)')
})

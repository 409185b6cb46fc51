// lease-files.test.ts - makes the lease directory: reports that it was missing, and the true reason if it cannot be made.

import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { open } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { LeaseFiles } from '../../../../../src/control/store/directory/lease-files.ts'
import { addon } from '../../../../../src/host/addon.ts'
import { eventually } from '../../../../support/event.ts'

/** A program that leases a file, and gives the lease back 0.2 s after the kernel asks for it. */
const LEASE = `import fcntl, os, signal, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
def give(*_):
  time.sleep(0.2)
  fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
signal.signal(signal.SIGIO, give)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('leased', flush=True)
time.sleep(60)`

let folder: string
let made: string[]
beforeEach(() => {
  made = []
  folder = mkdtempSync(join(tmpdir(), 'weft-lease-files-'))
})
afterEach(() => rmSync(folder, { recursive: true }))

async function use(path: string): Promise<void> {
  const files = new LeaseFiles(path, { onMade: (each) => made.push(each) })
  await files.doing(new AbortController().signal, async () => {}).finally(() => files.close())
}

it('reports a directory that it made, with parents, and none that existed', async () => {
  const path = join(folder, 'a/b')
  await use(path)
  expect([made, existsSync(join(path, 'subnets'))]).toEqual([[path], true])
  mkdirSync(join(folder, 'empty'))
  await use(join(folder, 'empty'))
  await use(path)
  expect(made).toEqual([path])
})

it('reports every 30 s that another process has the lock', async () => {
  const reports: string[] = []
  const files = new LeaseFiles(folder, { onLocked: (path) => reports.push(path) })
  const path = join(folder, 'lock')
  // A lock belongs to an open file description, so a second description in this process acts like another process.
  const other = await open(path, 'a')
  await addon.lockFile(other.fd)
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] })
  try {
    const changed = files.changing(new AbortController().signal, async () => 'changed')
    await eventually(() => expect(vi.getTimerCount()).toBe(1))
    vi.advanceTimersByTime(29_000)
    expect(reports).toEqual([])
    vi.advanceTimersByTime(31_000)
    expect(reports).toEqual([path, path])
    await other.close()
    expect(await changed).toBe('changed')
    expect(vi.getTimerCount()).toBe(0)
  } finally {
    vi.useRealTimers()
    await files.close()
  }
})

it('does not report a lock that is free, while other calls to file systems hang', async () => {
  const reports: string[] = []
  const tops = ['a', 'b', 'c'].map((name) => join(folder, name))
  const files = tops.map((top) => new LeaseFiles(top, { onLocked: (path) => reports.push(path) }))
  const { signal } = new AbortController()
  for (const each of files) await each.changing(signal, async () => {})
  const others = await Promise.all(tops.slice(0, 2).map((top) => open(join(top, 'lock'), 'a')))
  await Promise.all(others.map((other) => addon.lockFile(other.fd)))
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] })
  try {
    const first = files[0]!.changing(signal, async () => {})
    await eventually(() => expect(vi.getTimerCount()).toBe(1))
    const later = files.slice(1).map((each) => each.changing(signal, async () => {}))
    await eventually(() => expect(vi.getTimerCount()).toBeGreaterThanOrEqual(2))
    await new Promise((done) => setTimeout(done, 100))
    vi.advanceTimersByTime(31_000)
    expect(reports.toSorted()).toEqual(tops.slice(0, 2).map((top) => join(top, 'lock')))
    await Promise.all(others.map((other) => other.close()))
    await Promise.all([first, ...later])
  } finally {
    vi.useRealTimers()
    await Promise.all(files.map((each) => each.close()))
  }
})

// The NFS server of the kernel leases the files that other hosts use.
it.skipIf(spawnSync('python3', ['-V']).status !== 0).each(['lock', 'config', 'subnets/10.5.1.0-24'])(
  'waits for a file that another program has leased: %s',
  async (name) => {
    const files = new LeaseFiles(folder)
    const { signal } = new AbortController()
    await files.changing(signal, async () => {})
    const path = join(folder, name)
    writeFileSync(path, '{}')
    const leasing = spawn('python3', ['-c', LEASE, path], { stdio: ['ignore', 'pipe', 'inherit'] })
    await once(leasing.stdout, 'data')
    try {
      await files.changing(signal, async () => {
        expect(await files.config()).toBe(name === 'config' ? '{}' : undefined)
        expect((await files.read('10.5.1.0-24'))?.value).toBe(name.startsWith('subnets') ? '{}' : undefined)
      })
    } finally {
      leasing.kill()
      await files.close()
    }
  },
)

it('ends with an error for a directory that cannot exist', async () => {
  await expect(use('/proc/nonexistent/x')).rejects.toMatchObject({
    code: 'STORE_UNAVAILABLE',
    message: expect.stringMatching(/\/proc\/nonexistent\/x cannot be used: ENOENT/) as string,
  })
})

it.skipIf(process.getuid?.() !== 0)('names a read-only file system', async () => {
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'ro', 'tmpfs', folder])
  try {
    for (const path of [folder, join(folder, 'new')])
      await expect(use(path)).rejects.toMatchObject({
        code: 'STORE',
        message: expect.stringContaining('EROFS') as string,
        remedy: 'mount its file system read-write, or name another directory with --lease-dir',
      })
  } finally {
    execFileSync('umount', [folder])
  }
})

const STOPS_NEVER = new AbortController().signal

it('keeps the mode of a configuration that only root may read', async () => {
  const files = new LeaseFiles(folder)
  const path = join(folder, 'config')
  const set = async (text: string): Promise<number> => {
    await files.changing(STOPS_NEVER, () => files.setConfig(text))
    return statSync(path).mode & 0o777
  }
  expect(await set('{}')).toBe(0o644)
  chmodSync(path, 0o600)
  expect(await set('{"Network":"10.5.0.0/16"}')).toBe(0o600)
  await files.close()
})

it.skipIf(process.getuid?.() !== 0)('keeps the owner of a configuration that not all users may read', async () => {
  const files = new LeaseFiles(folder)
  const path = join(folder, 'config')
  writeFileSync(path, '{}')
  chownSync(path, 1234, 2345)
  chmodSync(path, 0o640)
  await files.changing(STOPS_NEVER, () => files.setConfig('{"Network":"10.5.0.0/16"}'))
  const { uid, gid, mode } = statSync(path)
  expect([uid, gid, mode & 0o777]).toEqual([1234, 2345, 0o640])
  await files.close()
})

it('leaves no temporary file if the configuration cannot be replaced', async () => {
  const files = new LeaseFiles(folder)
  const path = join(folder, 'config')
  mkdirSync(join(path, 'x'), { recursive: true })
  await expect(files.changing(STOPS_NEVER, () => files.setConfig('{}'))).rejects.toThrow(path)
  await files.close()
  expect(readdirSync(join(folder, 'tmp'))).toEqual([])
})

it('makes its folders again after somebody emptied a directory that has its configuration again', async () => {
  const files = new LeaseFiles(folder, { onMade: (each) => made.push(each) })
  const write = () => files.changing(STOPS_NEVER, () => files.write('10.5.1.0-24', '{}', false))
  await write()
  for (const name of readdirSync(folder)) rmSync(join(folder, name), { recursive: true })
  writeFileSync(join(folder, 'config'), '{"Network":"10.5.0.0/16"}')
  await expect(write()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  expect(await write()).toMatchObject({ key: '10.5.1.0-24', value: '{}' })
  await files.close()
})

it('does not use a mount point without its file system that has the folders of an earlier weftd', async () => {
  const files = new LeaseFiles(folder)
  const keys = () =>
    files.doing(STOPS_NEVER, async () => {
      await files.now()
      return files.keys()
    })
  await files.changing(STOPS_NEVER, () => files.write('10.5.1.0-24', '{}', false))
  const away = `${folder}.away`
  renameSync(folder, away)
  for (const name of ['subnets', 'tmp', 'weft']) mkdirSync(join(folder, name), { recursive: true })
  await expect(keys()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  await expect(keys()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  rmSync(folder, { recursive: true })
  renameSync(away, folder)
  expect(await keys()).toEqual(['10.5.1.0-24'])
  await files.close()
})

it('makes no folder in a directory without configuration and leases, because its file system is not mounted', async () => {
  const files = new LeaseFiles(folder)
  const now = () => files.doing(STOPS_NEVER, () => files.now())
  await now()
  const away = `${folder}.away`
  renameSync(folder, away)
  mkdirSync(folder)
  await expect(now()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  await expect(now()).rejects.toMatchObject({
    code: 'STORE_UNAVAILABLE',
    message: `the lease directory ${folder} cannot be used: it no longer has a configuration or leases`,
  })
  expect(readdirSync(folder)).toEqual([])
  // A new process, such as weft doctor, makes the folders, but folders are not leases.
  const other = new LeaseFiles(folder)
  await other.doing(STOPS_NEVER, () => other.keys())
  await other.close()
  expect(readdirSync(folder)).toContain('subnets')
  await expect(now()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  rmSync(folder, { recursive: true })
  renameSync(away, folder)
  writeFileSync(join(folder, 'config'), '{"Network":"10.5.0.0/16"}')
  expect(await now()).toBeGreaterThan(0)
  await files.close()
})

it.skipIf(process.getuid?.() !== 0)('knows the time on a full disk, also a process that starts there', async () => {
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', folder])
  try {
    await use(folder)
    const fill = spawnSync('dd', ['if=/dev/zero', `of=${folder}/fill`, 'bs=4k'])
    expect(fill.stderr.toString()).toMatch(/No space left/)
    const files = new LeaseFiles(folder)
    const now = () => files.doing(STOPS_NEVER, () => files.now())
    const first = await now()
    expect(Math.abs(first - Date.now())).toBeLessThan(5_000)
    await vi.waitFor(async () => expect(await now()).toBeGreaterThan(first))
    await files.close()
  } finally {
    execFileSync('umount', [folder])
  }
})

it('deletes only its own temporary files, not those of other programs in a folder tmp', async () => {
  mkdirSync(join(folder, 'tmp'))
  const own = ['10.5.1.0-24.host-1.7.0123abcd.0', 'clock.host.example.7.0123abcd', 'clock.host.7.0123abcd.3']
  const others = ['session.7', 'systemd-private-0123abcd', 'backup.tar']
  const old = new Date(Date.now() - 2 * 3_600_000)
  for (const name of [...own, ...others]) {
    writeFileSync(join(folder, 'tmp', name), 'x')
    utimesSync(join(folder, 'tmp', name), old, old)
  }
  await use(folder)
  expect(readdirSync(join(folder, 'tmp')).toSorted()).toEqual(others.toSorted())
})

it('changes no file outside of the directory through a symbolic link', async () => {
  const directory = join(folder, 'leases')
  const victim = join(folder, 'victim')
  writeFileSync(victim, 'precious')
  const files = new LeaseFiles(directory)
  const now = () => files.doing(STOPS_NEVER, () => files.now())
  await now()
  const [clock = ''] = readdirSync(join(directory, 'tmp'))
  rmSync(join(directory, 'tmp', clock))
  symlinkSync(victim, join(directory, 'tmp', clock))
  const refused = {
    code: 'STORE_UNAVAILABLE',
    remedy: 'remove the symbolic link',
    message: expect.stringContaining(clock) as string,
  }
  await expect(now()).rejects.toMatchObject(refused)
  rmSync(join(directory, 'tmp', clock))
  writeFileSync(join(directory, 'tmp', clock), '')
  symlinkSync(join(folder, 'made'), join(directory, 'lock'))
  await expect(files.changing(STOPS_NEVER, async () => {})).rejects.toMatchObject({
    code: 'STORE_UNAVAILABLE',
    remedy: 'remove the symbolic link',
  })
  expect([readFileSync(victim, 'utf8'), existsSync(join(folder, 'made'))]).toEqual(['precious', false])
  await files.close()
})

it('reads no lease through a symbolic link, and no file that is longer than any lease', async () => {
  const unreadable: string[] = []
  const files = new LeaseFiles(folder, { onUnreadable: (path, why) => unreadable.push(`${path}: ${why}`) })
  await files.doing(STOPS_NEVER, async () => {})
  const [linked, long] = [join(folder, 'subnets/10.5.1.0-24'), join(folder, 'subnets/10.5.2.0-24')]
  symlinkSync('/proc/self/environ', linked)
  writeFileSync(long, '{}')
  truncateSync(long, 1 << 30)
  expect([await files.read('10.5.1.0-24'), await files.read('10.5.2.0-24')]).toEqual([undefined, undefined])
  expect(unreadable).toEqual([
    `${linked}: ELOOP: too many symbolic links encountered, open '${linked}'`,
    `${long}: ${long} has 1073741824 bytes`,
  ])
  await files.close()
})

it('does not wait for a named pipe in place of the configuration or of a claim', async () => {
  mkdirSync(join(folder, 'weft'))
  execFileSync('mkfifo', [join(folder, 'config'), join(folder, 'weft/192.0.2.1')])
  const files = new LeaseFiles(folder)
  await expect(files.doing(STOPS_NEVER, () => files.config())).rejects.toMatchObject({
    code: 'STORE_UNAVAILABLE',
    message: expect.stringContaining('config is not a file') as string,
  })
  expect(await files.doing(STOPS_NEVER, () => files.claim('192.0.2.1', 'a'))).toBeUndefined()
  expect(readFileSync(join(folder, 'weft/192.0.2.1'), 'utf8')).toBe('a')
  await files.close()
})

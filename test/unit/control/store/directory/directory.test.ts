// directory.test.ts - how often a watch scans the lease directory.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, expect, it, vi } from 'vitest'
import { DirectoryStore } from '../../../../../src/control/store/directory/directory.ts'
import { LeaseFiles } from '../../../../../src/control/store/directory/lease-files.ts'

afterEach(() => void vi.restoreAllMocks())

it.each([
  ['a fast scan', 1, 5_000],
  ['a slow scan', 10_000, 200_000],
  ['a scan that waited for its file server for 31 hours', 31 * 3_600_000, 600_000],
])('pauses after %s', async (_what, tookMs, pauseMs) => {
  const directory = mkdtempSync(join(tmpdir(), 'weft-directory-'))
  const store = new DirectoryStore({ directory })
  const stopping = new AbortController()
  try {
    const { revision } = await store.list(stopping.signal)
    let now = performance.now()
    vi.spyOn(performance, 'now').mockImplementation(() => now)
    vi.spyOn(LeaseFiles.prototype, 'keys').mockImplementationOnce(async () => {
      now += tookMs
      return []
    })
    const timer = vi.spyOn(globalThis, 'setTimeout')
    const watch = store.watch(revision, stopping.signal)
    await watch.next() // confirms that the watch has begun
    const next = watch.next().catch((error: unknown) => error)
    await vi.waitFor(() => expect(timer.mock.calls.map(([, ms]) => ms)).toContain(pauseMs))
    stopping.abort()
    await next
    await store.close()
  } finally {
    rmSync(directory, { recursive: true })
  }
})

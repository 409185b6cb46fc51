// leave.test.ts - `weftd --leave` with a daemon that does not respond: an error with a remedy, and nothing is removed.

import { closeSync, existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { addon } from '../../../../src/host/addon.ts'
import { leave } from '../../../../src/tool/cleanup/leave.ts'
import { optionsOf } from '../../../support/options.ts'

const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }

it('refuses if a daemon listens but accepts no connection', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-leave-'))
  const fds: number[] = []
  try {
    const subnetFile = join(folder, 'subnet.env')
    const path = `${subnetFile}.handover`
    fds.push(addon.listenUnix(path))
    const fill = (): void => {
      for (;;) fds.push(addon.connectUnix(path))
    }
    expect(fill).toThrow(expect.objectContaining({ code: 'EAGAIN' }))
    await expect(leave(optionsOf('--subnet-file', subnetFile), log)).rejects.toMatchObject({
      code: 'DEVICE',
      message: expect.stringContaining('cannot connect to the weftd that runs on this host: ') as string,
      remedy: 'run this command as the user of that weftd; if that weftd hangs, kill it',
    })
    expect(existsSync(path)).toBe(true)
  } finally {
    fds.forEach((fd) => closeSync(fd))
    rmSync(folder, { recursive: true })
  }
})

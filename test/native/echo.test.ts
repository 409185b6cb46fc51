// echo.test.ts - compiles echo_test.cc with sanitizers, and runs it in a network namespace.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { execute } from '../../lab/command.ts'
import { BUILD_MS, buildNative } from '../support/native-program.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs('g++', HOSTS)

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-echo-'))
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

it(
  'sends ICMP and ICMPv6 echo requests with both kinds of socket, under sanitizers',
  async () => {
    const program = join(folder, 'echo-test')
    const flags = ['-g1', '-O0', '-fsanitize=address,undefined', '-fno-sanitize-recover=all']
    await buildNative('echo_test', program, flags, ['io/echo.cc', 'core/checksum.cc'])
    const { code, stdout, stderr } = await execute([program, '1'], { timeoutMs: BUILD_MS })
    expect({ code, said: (stdout + stderr).slice(-2_000) }).toEqual({ code: 0, said: 'seed 1: 0 failures\n' })
  },
  2 * BUILD_MS,
)

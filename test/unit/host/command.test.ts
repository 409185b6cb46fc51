// command.test.ts - programs run without a shell, and errors have one line.

import { describe, expect, it } from 'vitest'
import { packageOf, run, withSystemFolders } from '../../../src/host/command.ts'

const node = (script: string, ...args: string[]): Promise<string> => run(process.execPath, ['-e', script, ...args])

describe('run', () => {
  it('passes arguments unchanged, in the C locale', async () => {
    expect(await node('console.log(process.argv[1], process.env.LC_ALL)', '$(id) `id` "; id')).toBe(
      '$(id) `id` "; id C\n',
    )
  })

  it('passes input', async () => {
    expect(await run('cat', [], { input: 'two\nlines' })).toBe('two\nlines')
  })

  it('names the package of a program that is not installed', async () => {
    await expect(run('no-such-program', ['link'])).rejects.toMatchObject({
      code: 'COMMAND',
      message: 'no-such-program is not installed',
      remedy: 'install the package no-such-program',
    })
  })

  it.each([
    ['ip', 'iproute2'],
    ['bridge', 'iproute2'],
    ['ss', 'iproute2'],
    ['nft', 'nftables'],
    ['sysctl', 'procps'],
    ['setpriv', 'util-linux'],
    ['iptables', 'iptables'],
    ['ip6tables-save', 'iptables'],
    ['iptables-legacy-restore', 'iptables'],
    ['xtables-nft-multi', 'iptables'],
    ['wireguard-go', 'wireguard-go'],
  ])('finds the package of %s', (program, name) => {
    expect(packageOf(program)).toBe(name)
  })

  it('finds administration programs that the PATH of an ordinary user lacks', async () => {
    const path = process.env['PATH']
    process.env['PATH'] = '/usr/bin:/bin'
    try {
      expect(await run('sh', ['-c', 'echo $PATH'])).toBe('/usr/bin:/bin:/usr/sbin:/sbin\n')
      process.env['PATH'] = ''
      expect(await run('sh', ['-c', 'echo $PATH'])).toBe('/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin\n')
    } finally {
      process.env['PATH'] = path
    }
    expect(withSystemFolders('/sbin:/bin')).toBe('/sbin:/bin:/usr/sbin')
  })

  it('shows the error of nft without the marks below it', async () => {
    const nft = 'Error: No such file or directory\nlist table ip flannel-ipv4\n              ^^^^^^^^^^^^\n'
    await expect(node(`process.stderr.write(${JSON.stringify(nft)}); process.exit(1)`)).rejects.toMatchObject({
      code: 'COMMAND',
      message: expect.stringMatching(/failed: Error: No such file or directory$/),
    })
  })

  it.each([
    ['too long an argument', 'x'.repeat(4 << 20), /E2BIG/],
    ['one that no program can have', 'a\0b', /null bytes/],
  ])('rejects with a WeftError if the program cannot be started: %s', async (_what, argument, why) => {
    await expect(run('true', [argument])).rejects.toMatchObject({
      code: 'COMMAND',
      message: expect.stringMatching(why),
    })
  })

  it('shows the last line of the program', async () => {
    await expect(node('console.error("warning"); console.error("broken"); process.exit(2)')).rejects.toMatchObject({
      code: 'COMMAND',
      message: expect.stringMatching(/` failed: broken$/),
    })
  })

  it('leaves out the hints of iptables-restore, and explains the missing capability of legacy iptables', async () => {
    const said = `iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'nat'

Error occurred at line: 1
Try \`iptables-restore -h' or 'iptables-restore --help' for more information.
`
    await expect(node(`console.error(${JSON.stringify(said)}); process.exit(2)`)).rejects.toMatchObject({
      code: 'COMMAND',
      message: expect.stringMatching(/unable to initialize table 'nat'$/),
      remedy: expect.stringContaining('CAP_NET_RAW'),
    })
    const denied =
      "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Permission denied (you must be root)"
    await expect(node(`console.error(${JSON.stringify(denied)}); process.exit(3)`)).rejects.toMatchObject({
      code: 'PERMISSION',
      remedy: expect.stringContaining('CAP_NET_RAW'),
    })
    const locked = "Fatal: can't open lock file /run/xtables.lock: Read-only file system"
    await expect(node(`console.error(${JSON.stringify(locked)}); process.exit(4)`)).rejects.toMatchObject({
      code: 'COMMAND',
      remedy: expect.stringContaining('legacy iptables needs /run/xtables.lock'),
    })
  })

  it('distinguishes a missing capability from other failures', async () => {
    await expect(
      node('console.error("RTNETLINK answers: Operation not permitted"); process.exit(2)'),
    ).rejects.toMatchObject({
      code: 'PERMISSION',
      remedy: expect.stringContaining('CAP_NET_ADMIN'),
    })
  })

  it('ends the program when the signal aborts, and rejects with the reason', async () => {
    const stopping = new AbortController()
    const running = run(process.execPath, ['-e', 'setInterval(() => {}, 1000)'], { signal: stopping.signal })
    const reason = new Error('stop')
    stopping.abort(reason)
    await expect(running).rejects.toBe(reason)
  })
})

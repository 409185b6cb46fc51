// command.test.ts - programs run without a shell; what goes wrong is said in one line.

import { describe, expect, it } from 'vitest'
import { packageOf, run, withSystemFolders } from '../../../src/host/command.ts'

const node = (script: string, ...args: string[]): Promise<string> => run(process.execPath, ['-e', script, ...args])

describe('run', () => {
  it('hands over arguments as they are, in the C locale', async () => {
    expect(await node('console.log(process.argv[1], process.env.LC_ALL)', '$(id) `id` "; id')).toBe(
      '$(id) `id` "; id C\n',
    )
  })

  it('gives input', async () => {
    expect(await run('cat', [], { input: 'two\nlines' })).toBe('two\nlines')
  })

  it('names a program that is not installed and its package', async () => {
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
    ['wg', 'wireguard-tools'],
    ['sysctl', 'procps'],
    ['setpriv', 'util-linux'],
    ['iptables', 'iptables'],
    ['ip6tables-save', 'iptables'],
    ['iptables-legacy-restore', 'iptables'],
    ['xtables-nft-multi', 'iptables'],
    ['wireguard-go', 'wireguard-go'],
  ])('knows the package of %s', (program, name) => {
    expect(packageOf(program)).toBe(name)
  })

  it('finds programs for administrators that the path of an ordinary user lacks', async () => {
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

  it('tells the error of nft, and not the marks below it', async () => {
    const nft = 'Error: No such file or directory\nlist table ip flannel-ipv4\n              ^^^^^^^^^^^^\n'
    await expect(node(`process.stderr.write(${JSON.stringify(nft)}); process.exit(1)`)).rejects.toMatchObject({
      code: 'COMMAND',
      message: expect.stringMatching(/failed: Error: No such file or directory$/),
    })
  })

  it.each([
    ['too long an argument', 'x'.repeat(4 << 20), /E2BIG/],
    ['one that no program can have', 'a\0b', /null bytes/],
  ])('rejects, as for any failure, what cannot be started: %s', async (_what, argument, why) => {
    await expect(run('true', [argument])).rejects.toMatchObject({
      code: 'COMMAND',
      message: expect.stringMatching(why),
    })
  })

  it('says what the program said last', async () => {
    await expect(node('console.error("warning"); console.error("broken"); process.exit(2)')).rejects.toMatchObject({
      code: 'COMMAND',
      message: expect.stringMatching(/` failed: broken$/),
    })
  })

  it('leaves out what iptables-restore adds about its usage, and knows what the legacy kind lacks', async () => {
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
  })

  it('tells a missing capability from other failures', async () => {
    await expect(
      node('console.error("RTNETLINK answers: Operation not permitted"); process.exit(2)'),
    ).rejects.toMatchObject({
      code: 'PERMISSION',
      remedy: expect.stringContaining('CAP_NET_ADMIN'),
    })
  })

  it('ends the program when told to stop, and rejects with the reason', async () => {
    const stopping = new AbortController()
    const running = run(process.execPath, ['-e', 'setInterval(() => {}, 1000)'], { signal: stopping.signal })
    const reason = new Error('stop')
    stopping.abort(reason)
    await expect(running).rejects.toBe(reason)
  })
})

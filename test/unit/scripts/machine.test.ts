// machine.test.ts - the reasons why the demo cannot run, which are reported before anything is built.

import { describe, expect, it } from 'vitest'
import { whyNoDemo } from '../../../scripts/machine.mjs'

const ALL = 'CapEff:\t000001ffffffffff\n'
const DOCKER = 'CapEff:\t00000000a80425fb\n' // the default of its containers
const refusal = (code: string) => (): void => {
  throw Object.assign(new Error(code), { code })
}
const machine: NonNullable<Parameters<typeof whyNoDemo>[0]> = {
  isRoot: true,
  status: ALL,
  openTun: () => {},
  unshare: () => undefined,
}

describe('the demo', () => {
  it('runs as root, and as a user for whom the kernel makes namespaces', () => {
    expect(whyNoDemo(machine)).toBeUndefined()
    const commands: string[][] = []
    const unshare = (command: string[]): undefined => void commands.push(command)
    expect(whyNoDemo({ ...machine, isRoot: false, status: 'CapEff:\t0\n', unshare })).toBeUndefined()
    expect(commands.flat().slice(0, 2)).toEqual(['unshare', '--user'])
  })

  it.each([
    ['a container', { status: DOCKER }, /CAP_NET_ADMIN and CAP_SYS_ADMIN are missing; .*docker run --privileged/],
    [
      'one that may make devices',
      { status: 'CapEff:\t00000000a80435fb\n' },
      /: CAP_SYS_ADMIN is missing; .*--privileged/,
    ],
    ['no TUN', { openTun: refusal('ENOENT') }, /dev\/net\/tun cannot be opened \(ENOENT\); .*modprobe tun/],
    ['a forbidden TUN', { openTun: refusal('EPERM') }, /\(EPERM\); .*--device \/dev\/net\/tun/],
    [
      'AppArmor',
      { unshare: (): string => 'unshare: cannot change root' },
      /cannot be made \(unshare: cannot change root\); .*--privileged/,
    ],
    ["a user's TUN", { isRoot: false, openTun: refusal('EACCES') }, /this user may not open .*chmod 0666/],
    [
      'a user without namespaces',
      { isRoot: false, unshare: (): string => 'no' },
      /lets this user make no namespaces \(no\); run it as root/,
    ],
  ])('says why it cannot run: %s', (_what, lack, why) => {
    expect(whyNoDemo({ ...machine, ...lack })).toMatch(why)
  })
})

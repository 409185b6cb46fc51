// subnet-env.test.ts - the file's bytes, its replacement, and how an earlier one is read.

import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { formatIpv4Net, parseIpv4Net } from '../../../src/net/ipv4.ts'
import { readPreviousNet, writeSubnetEnv } from '../../../src/status/subnet-env.ts'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'subnet-env-'))
})
afterEach(() => rmSync(folder, { recursive: true }))

const env = { network: parseIpv4Net('10.1.0.0/16')!, subnet: parseIpv4Net('10.1.74.0/24')!, mtu: 1472, ipMasq: false }

describe('subnet.env', () => {
  it("has upstream's bytes and mode, whatever the umask, and leaves nothing else", async () => {
    const path = join(folder, 'a/b/subnet.env')
    const umask = process.umask(0o077)
    try {
      await writeSubnetEnv(path, env)
      await writeSubnetEnv(path, env)
    } finally {
      process.umask(umask)
    }
    expect(readFileSync(path, 'utf8')).toBe(
      'FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.74.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n',
    )
    expect(statSync(path).mode & 0o777).toBe(0o644)
    expect(readdirSync(join(folder, 'a/b'))).toEqual(['subnet.env'])
  })

  it('says what to do when it cannot be written', async () => {
    writeFileSync(join(folder, 'file'), '')
    await expect(writeSubnetEnv(join(folder, 'file/subnet.env'), env)).rejects.toMatchObject({
      code: 'PERMISSION',
      remedy: expect.stringContaining('--subnet-file'),
    })
  })

  it.each([
    ['FLANNEL_SUBNET=10.1.74.1/24\n', '10.1.74.0/24', 0],
    ['export FLANNEL_SUBNET="10.1.74.1/24" # ours\n', '10.1.74.0/24', 0],
    ['FLANNEL_SUBNET=10.244.1.0/24,not-a-cidr\n', '10.244.1.0/24', 1],
    ['FLANNEL_SUBNET=10.244.1.0/24,10.244.2.0/24\n', undefined, 1],
    ['FLANNEL_SUBNET=not-a-cidr\n', undefined, 2],
    ['', undefined, 1],
  ])('reads %j as %j', async (text, subnet, warnings) => {
    const path = join(folder, 'subnet.env')
    writeFileSync(path, text)
    const said: string[] = []
    const previous = await readPreviousNet(path, 'FLANNEL_SUBNET', (message) => said.push(message))
    expect(previous && formatIpv4Net(previous)).toBe(subnet)
    expect(said).toHaveLength(warnings)
  })

  it('warns in the words of upstream on a first start', async () => {
    const path = join(folder, 'none')
    const said: string[] = []
    expect(await readPreviousNet(path, 'FLANNEL_SUBNET', (message) => said.push(message))).toBeUndefined()
    expect(said).toEqual([`no subnet found for key: FLANNEL_SUBNET in file: ${path}`])
    chmodSync(folder, 0o755)
  })
})

// router-advertisements.test.ts - when weftd warns that the kernel accepts router advertisements from the tunnel.

import { expect, it } from 'vitest'
import { refuseRouterAdvertisements } from '../../../../src/path/backends/router-advertisements.ts'

const FOLDER = 'net/ipv6/conf/flannel.1'

async function warningsWith(
  { accepts, forwards = '0', off = '0' }: { accepts?: string; forwards?: string; off?: string },
  isWritable = false,
): Promise<string[]> {
  const settings = new Map(
    accepts === undefined
      ? []
      : [
          [`${FOLDER}/accept_ra`, accepts],
          [`${FOLDER}/forwarding`, forwards],
          [`${FOLDER}/disable_ipv6`, off],
        ],
  )
  const warnings: string[] = []
  await refuseRouterAdvertisements(
    'flannel.1',
    { warn: (line) => void warnings.push(line) },
    {
      read: async (name) => settings.get(name),
      async write(name, value) {
        if (!isWritable) throw new Error('EROFS: read-only file system')
        settings.set(name, value)
      },
    },
  )
  return warnings
}

const WARNING =
  'flannel.1 accepts IPv6 router advertisements, which containers of other hosts can send, because weftd cannot write /proc/sys: ' +
  'run `sysctl -w net.ipv6.conf.flannel/1.accept_ra=0` on the host'

it('warns if the kernel accepts router advertisements, and /proc/sys is read-only, as in a pod', async () => {
  expect(await warningsWith({ accepts: '1' })).toEqual([WARNING])
  expect(await warningsWith({ accepts: '2', forwards: '1' })).toEqual([WARNING])
})

it('does not warn if the kernel ignores router advertisements', async () => {
  expect(await warningsWith({ accepts: '1' }, true)).toEqual([])
  expect(await warningsWith({ accepts: '0' })).toEqual([])
  expect(await warningsWith({ accepts: '1', forwards: '1' })).toEqual([])
  expect(await warningsWith({ accepts: '1', off: '1' })).toEqual([])
  expect(await warningsWith({})).toEqual([])
})

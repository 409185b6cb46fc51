// reservation.test.ts - chmod turns a lease file into a reservation and back into a lease, as docs/stores.md says, even
// while a node holds the lease.

import { execFileSync } from 'node:child_process'
import { chmodSync, mkdtempSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { acquireLease, renewLease } from '../../src/control/lease/own-lease.ts'
import { DirectoryStore } from '../../src/control/store/directory/directory.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'

it('chmod a-w FILE makes a lease endless until chmod u+w FILE, and the next renewal keeps the file and its mode', async () => {
  const docs = readFileSync(join(import.meta.dirname, '../../docs/stores.md'), 'utf8')
  const [, toLease = ''] = /`([^`]*chmod u\+w FILE)` turns the reservation into a lease again/.exec(docs) ?? []
  const directory = mkdtempSync(join(tmpdir(), 'weft-reservation-'))
  writeFileSync(join(directory, 'config'), '{"Network":"10.5.0.0/16"}')
  const store = new DirectoryStore({ directory })
  try {
    const quiet = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
    const options = { random: () => 0, log: quiet, signal: AbortSignal.timeout(60_000) }
    const attrs = { publicIp: { ipv4: parseIpv4('192.0.2.1')! }, backendType: '' }
    const config = parseNetworkConfig('{"Network":"10.5.0.0/16"}')
    const lease = await acquireLease(store, config, attrs, options)
    const renewed = await renewLease(store, lease, options)
    expect(renewed.expiresAt).toBeGreaterThan(Date.now())
    // The store has read the file once, and reads it again only if it changes.
    expect((await store.list(options.signal)).entries).toMatchObject([{ key: lease.key, isReservation: false }])

    const file = join(directory, 'subnets', lease.key)
    chmodSync(file, statSync(file).mode & 0o7555)

    const reserved = await renewLease(store, renewed, options)
    expect(reserved).toMatchObject({ key: lease.key, expiresAt: undefined })
    expect(statSync(file).mode & 0o222).toBe(0)
    expect((await store.list(options.signal)).entries).toMatchObject([{ key: lease.key, isReservation: true }])

    const daysAgo = Date.now() / 1000 - 3 * 86_400
    utimesSync(file, daysAgo, daysAgo) // weftd does not write a reservation again
    execFileSync('sh', ['-e', '-c', toLease.replaceAll('FILE', '"$FILE"')], { env: { ...process.env, FILE: file } })

    expect((await store.list(options.signal)).entries).toMatchObject([{ key: lease.key, isReservation: false }])
    expect((await renewLease(store, reserved, options)).expiresAt).toBeGreaterThan(Date.now())
    expect((await store.list(options.signal)).entries).toMatchObject([{ key: lease.key, isReservation: false }])
  } finally {
    await store.close()
    rmSync(directory, { recursive: true })
  }
})

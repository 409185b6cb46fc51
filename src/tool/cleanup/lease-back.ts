// lease-back.ts - deletes, for `weftd --leave`, the lease of a node whose weftd does not run. The file subnet.env names
// the lease's subnets.

import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { parseEnv } from 'node:util'
import { messageOf } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { decodeAll, isSame } from '../../control/lease/claim.ts'
import { leasesEqual } from '../../control/lease/lease.ts'
import type { Store } from '../../control/store/store.ts'
import { limited } from '../../host/bell.ts'
import { hostKernel } from '../../host/netlink/host-kernel.ts'
import { addressText, familyOf, FAMILIES, formatAddress, formatNet, listed, parseNet } from '../../net/address.ts'
import { createStore } from '../../node/choose.ts'
import { lastKnownFile, readLastKnown } from '../../node/restart/last-known.ts'
import type { NodeOptions, StoreOptions } from '../../options.ts'

/** The time limit in ms for deleting the lease from the store. */
const STORE_MS = 5_000

/**
 * Deletes the node's lease, and its claim (the entry that records which host uses a public IP), from the store that the
 * flags name. `isHosts` checks whether an address belongs to this host. Returns false if the lease may still be in the
 * store. Logs the result, and never rejects for a failure of the store.
 */
export async function giveLeaseBack(
  node: NodeOptions,
  options: StoreOptions,
  log: Log,
  isHosts = isHostAddress,
): Promise<boolean> {
  const file = node['subnet-file']
  if (options['kube-subnet-mgr']) {
    log.info('No weftd runs for this subnet file. Its lease ends with the node of the cluster')
    return true
  }
  const env = parseEnv(await readFile(file, 'utf8').catch(() => ''))
  const own = ['FLANNEL_SUBNET', 'FLANNEL_IPV6_SUBNET'].flatMap((name) => parseNet(env[name] ?? '') ?? [])
  if (own.length === 0) {
    log.warn(
      `No weftd runs, and ${file} names no subnet, so no lease is given back; if this node has one, delete it: \`weft lease release SUBNET\``,
    )
    return true
  }
  const subnet = own.map(formatNet).join(',')
  const folder = options['lease-dir']
  try {
    // Check that the lease directory exists, because opening a store in a missing directory would create the directory.
    if (folder !== '' && !existsSync(folder)) throw new Error(`there is no directory ${folder}`)
    const known = await readLastKnown(lastKnownFile(node), { ...log, warn: () => {} })
    const given = new Set([node['public-ip'], node['public-ipv6']])
    const store = await createStore(options, log)
    const late = (): Error => new Error(`no answer within ${STORE_MS / 1000} s`)
    try {
      return await limited(new AbortController().signal, STORE_MS, late, (signal) => deleteFrom(store, signal))
    } finally {
      await store.close()
    }

    async function deleteFrom(from: Store, signal: AbortSignal): Promise<boolean> {
      const { entries } = await from.list(signal)
      const lease = decodeAll(entries).find((each) => own.every((net) => isSame(net, each.subnet[familyOf(net)])))
      if (!lease) {
        log.warn(
          `The ${from.name} store has no lease of ${subnet}: it has ended, was given back before, or the flags name another store`,
        )
        return true
      }
      const { publicIp } = lease.attrs
      const owners = listed(publicIp).map(formatAddress)
      // The lease is this node's if it equals this node's last known lease. If the two differ, another host may have
      // taken the subnet.
      const isUnchanged = known !== undefined && leasesEqual(lease, known.lease)
      const are = await Promise.all(owners.map(async (address) => given.has(address) || isHosts(address)))
      if (!isUnchanged && !are.every(Boolean)) {
        log.warn(
          `The lease of ${subnet} is not given back, because its public IP ${addressText(publicIp)} is not an address of this host; if it is this node's lease: \`weft lease release ${subnet}\``,
        )
        return false
      }
      if (lease.entry.isReservation) {
        log.info(`The lease of ${subnet} stays, because it is reserved`)
        return true
      }
      if (!(await from.delete(lease.key, lease.entry, signal))) throw new Error('another program changed it meanwhile')
      log.info(`The lease of ${subnet} is given back`)
      await unclaim(from, owners, signal).catch((error: unknown) =>
        log.warn(`The name of this host stays in the store: ${messageOf(error)}`),
      )
      return true
    }
  } catch (error) {
    log.error(
      `The lease of ${subnet} cannot be given back, and ends by itself: ${messageOf(error)}; delete it once the store answers: \`weft lease release ${subnet}\``,
    )
    return false
  }
}

/**
 * Deletes this host's claims, which are the entries with its host name, from the store. Hosts that are configured with
 * the same public IP detect each other by these entries.
 */
async function unclaim(store: Store, owners: readonly string[], signal: AbortSignal): Promise<void> {
  const { values } = await store.claims(undefined, signal)
  for (const address of owners) {
    const claim = values.get(address)
    if (claim !== undefined) await store.unclaim(address, claim, signal)
  }
}

async function isHostAddress(address: string): Promise<boolean> {
  const links = await hostKernel.links()
  return links.some(({ addresses }) =>
    FAMILIES.some((family) => addresses[family].some((each) => formatAddress(each.address) === address)),
  )
}

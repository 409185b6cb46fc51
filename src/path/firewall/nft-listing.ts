// nft-listing.ts - reads flannel's nftables table of a family.

import { isWeftError } from '../../base/errors.ts'
import { isRefusal, type Run } from '../../host/command.ts'
import type { HostKernel } from '../../host/kernel.ts'
import type { Family } from '../../net/address.ts'
import { WORDS } from './flannel-rules.ts'

/**
 * Returns the output of `nft list table` for flannel's table; an empty text if the table does not exist. Starts no
 * program if the kernel's list of tables lacks the table. Rejects for every other failure: if weftd considered the
 * table missing, it would rebuild the table without the rules of other daemons.
 */
export async function listNftTable(run: Run, kernel: HostKernel, family: Family): Promise<string> {
  const { nft, table } = WORDS[family]
  const tables = await kernel.nftTables()
  if (tables && !tables.some((each) => each.family === nft && each.name === table)) return ''
  try {
    return await run('nft', ['-s', 'list', 'table', nft, table])
  } catch (error) {
    if (isWeftError(error, 'COMMAND') && isRefusal(error) && error.message.includes('No such file or directory'))
      return ''
    throw error
  }
}

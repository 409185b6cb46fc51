// nft-listing.ts - reads a family's table of the nftables mode.

import { isWeftError } from '../../base/errors.ts'
import { isRefusal, type Run } from '../../host/command.ts'
import type { Family } from '../../net/address.ts'
import { WORDS } from './flannel-rules.ts'

/**
 * The table as `nft list table` shows it; empty if there is none. Rejects with any other failure: a table that is taken for gone would be
 * made anew, without the rules of other daemons.
 */
export async function listNftTable(run: Run, family: Family): Promise<string> {
  const { nft, table } = WORDS[family]
  try {
    return await run('nft', ['-s', 'list', 'table', nft, table])
  } catch (error) {
    if (isWeftError(error, 'COMMAND') && isRefusal(error) && error.message.includes('No such file or directory'))
      return ''
    throw error
  }
}

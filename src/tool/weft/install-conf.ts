// install-conf.ts - `weft install-conf`: flannel's install-conf program. An init container runs it to copy a CNI
// configuration to the host.

import { readFile, stat } from 'node:fs/promises'
import { messageOf, WeftError } from '../../base/errors.ts'
import { replaceFile } from '../../host/replace-file.ts'

export const INSTALL_CONF_HELP = `Usage: weft install-conf SRC DEST

Copies the file SRC to the path DEST, with its mode. A program that reads DEST meanwhile sees the old or the new file, never a part.
`

/**
 * Copies the CNI configuration. Throws WeftError USAGE unless there are two arguments, and PERMISSION if a file cannot
 * be read or written.
 */
export async function installConf(args: readonly string[]): Promise<void> {
  const [source = '', destination = ''] = args
  if (args.length !== 2) {
    throw new WeftError('USAGE', `it takes two arguments, not ${args.length}`, {
      remedy: 'write install-conf SRC DEST',
    })
  }
  try {
    const { mode } = await stat(source)
    await replaceFile(destination, await readFile(source), mode & 0o7777)
  } catch (error) {
    throw new WeftError('PERMISSION', `error installing "${source}": ${messageOf(error)}`, {
      remedy: `check that ${source} can be read, and that the folder of ${destination} exists and can be written`,
      cause: error,
    })
  }
}

// archive.mjs - tar and gzip of a folder whose bytes are told by names, modes and contents alone.

import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { gzipSync } from 'node:zlib'

export const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex')

/** A tar of what is in a folder, or of `names` in it, all root's and of SOURCE_DATE_EPOCH. */
export const tarOf = (folder, ...names) =>
  execFileSync(
    'tar',
    [
      '--create',
      '--sort=name',
      '--format=gnu',
      '--owner=0',
      '--group=0',
      '--numeric-owner',
      `--mtime=@${process.env.SOURCE_DATE_EPOCH}`,
      '--directory',
      folder,
      ...(names.length > 0 ? names : ['.']),
    ],
    { maxBuffer: 2 ** 30 },
  )

/**
 * Gives a folder and all in it the time SOURCE_DATE_EPOCH: dpkg-deb and rpmbuild do so with what is later, and leave what is earlier as it
 * is, by a clock that is wrong.
 */
export const date = (folder) =>
  execFileSync('find', [
    folder,
    '-exec',
    'touch',
    '--no-dereference',
    `--date=@${process.env.SOURCE_DATE_EPOCH}`,
    '{}',
    '+',
  ])

/** gzip's without a name and a time. */
export const gzip = (bytes) => gzipSync(bytes, { level: 9 })

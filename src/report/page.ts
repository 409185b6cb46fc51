// page.ts - the status page of the health port: one HTML file, with headers that forbid browsers to load any other
// content.

import { createHash } from 'node:crypto'
import { pageText } from '../base/assets.ts'

export interface Page {
  readonly body: string
  readonly headers: Readonly<Record<string, string>>
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('base64')

/**
 * Reads the page's HTML file for each request, because requests are rare and the page need not stay in memory. Returns
 * undefined if the page was not built.
 */
export async function readPage(read = pageText): Promise<Page | undefined> {
  const body = await read()
  if (body === undefined) return undefined
  const hashes = (tag: string): string =>
    [...body.matchAll(new RegExp(`<${tag}>(.*?)</${tag}>`, 'gs'))]
      .map(([, text = '']) => `'sha256-${sha256(text)}'`)
      .join(' ')
  // The Content Security Policy (Level 3) of the page. It allows only the page's own script and style, and only
  // requests to this server.
  const policy = [
    "default-src 'none'",
    `script-src ${hashes('script')}`,
    `style-src ${hashes('style')}`,
    "connect-src 'self'",
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
  ]
  return {
    body,
    headers: {
      'Content-Security-Policy': policy.join('; '),
      'Cache-Control': 'no-cache',
      ETag: `"${sha256(body)}"`,
      'Referrer-Policy': 'no-referrer',
    },
  }
}

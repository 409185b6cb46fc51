// acs3.ts - signs a request by Alibaba Cloud's ACS3-HMAC-SHA256. Does no I/O.
//
// Source: "Request syntax and signature method V3" of Alibaba Cloud's SDK documents. Their example is a test vector of
// the unit test.

import { createHash, createHmac } from 'node:crypto'
import type { CloudKeys } from './tc3.ts'

interface Acs3Request {
  /** `vpc.cn-hangzhou.aliyuncs.com` */
  readonly host: string
  readonly action: string
  readonly version: string
  readonly query: Readonly<Record<string, string>>
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')
const encoded = (text: string): string =>
  encodeURIComponent(text).replaceAll(/[!'()*]/g, (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`)

/** Returns the canonical query of a request, which is also the query of its URL. */
export const acs3Query = (query: Acs3Request['query']): string =>
  Object.keys(query)
    .toSorted()
    .map((name) => `${encoded(name)}=${encoded(query[name] ?? '')}`)
    .join('&')

/**
 * Returns the headers of a signed POST to `/` without a body. `at` is in ms since 1970; `nonce` is a text that is used
 * only once.
 */
export function signAcs3(
  { host, action, version, query }: Acs3Request,
  { id, secret, token }: CloudKeys,
  at: number,
  nonce: string,
): Record<string, string> {
  const headers: Record<string, string> = {
    host,
    'x-acs-action': action,
    'x-acs-content-sha256': sha256(''),
    'x-acs-date': new Date(at).toISOString().replace(/\.\d+/, ''),
    'x-acs-signature-nonce': nonce,
    'x-acs-version': version,
    ...(token === undefined ? {} : { 'x-acs-security-token': token }),
  }
  const names = Object.keys(headers).toSorted()
  const canonicalHeaders = names.map((name) => `${name}:${headers[name]?.trim()}\n`).join('')
  const canonical = ['POST', '/', acs3Query(query), canonicalHeaders, names.join(';'), sha256('')].join('\n')
  const signature = createHmac('sha256', secret)
    .update(`ACS3-HMAC-SHA256\n${sha256(canonical)}`)
    .digest('hex')
  const authorization = `ACS3-HMAC-SHA256 Credential=${id},SignedHeaders=${names.join(';')},Signature=${signature}`
  return { ...headers, authorization }
}

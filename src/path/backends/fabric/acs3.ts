// acs3.ts - signs a request by Alibaba Cloud's ACS3-HMAC-SHA256. Does no I/O.
//
// Source: "Request syntax and signature method V3" of Alibaba Cloud's SDK documents. The example in these documents is
// a test vector of the unit test.

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

/**
 * Returns a request's query in the canonical form, which both the signature and the URL of the request must contain.
 */
export const acs3Query = (query: Acs3Request['query']): string =>
  Object.keys(query)
    .toSorted()
    .map((name) => `${encoded(name)}=${encoded(query[name] ?? '')}`)
    .join('&')

/**
 * Returns the headers of a signed POST to `/` without a body. `at` is the time of the signature in ms since 1970;
 * `nonce` is a text that is used only once.
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
  return { ...headers, authorization: acs3Authorization({ query, headers, body: '' }, { id, secret }) }
}

/**
 * Returns the Authorization header of a POST to `/` with these query parameters, headers and body, which are all
 * signed.
 */
export function acs3Authorization(
  { query, headers, body }: Pick<Acs3Request, 'query'> & { headers: Readonly<Record<string, string>>; body: string },
  { id, secret }: Pick<CloudKeys, 'id' | 'secret'>,
): string {
  const names = Object.keys(headers).toSorted()
  const canonicalHeaders = names.map((name) => `${name}:${headers[name]?.trim()}\n`).join('')
  const canonical = ['POST', '/', acs3Query(query), canonicalHeaders, names.join(';'), sha256(body)].join('\n')
  const signature = createHmac('sha256', secret)
    .update(`ACS3-HMAC-SHA256\n${sha256(canonical)}`)
    .digest('hex')
  return `ACS3-HMAC-SHA256 Credential=${id},SignedHeaders=${names.join(';')},Signature=${signature}`
}

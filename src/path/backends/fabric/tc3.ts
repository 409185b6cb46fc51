// tc3.ts - signs a request by Tencent Cloud's TC3-HMAC-SHA256. Does no I/O.
//
// Source: "Signature v3" of Tencent Cloud's API documents. The example in these documents is a test vector of the unit
// test.

import { createHash, createHmac } from 'node:crypto'

export interface CloudKeys {
  readonly id: string
  readonly secret: string
  /** The token that belongs to temporary access keys; left out for permanent keys. */
  readonly token?: string | undefined
}

interface Tc3Request {
  /** `cvm.tencentcloudapi.com` */
  readonly host: string
  readonly contentType: string
  readonly body: string
  /** The headers to sign besides `content-type` and `host`, with names in lower case. */
  readonly signed?: Readonly<Record<string, string>>
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')
const hmac = (key: string | Buffer, text: string): Buffer => createHmac('sha256', key).update(text).digest()

/** Returns the Authorization header of a POST to `/`. `at` is the time of the signature in seconds since 1970. */
export function signTc3(
  { host, contentType, body, signed = {} }: Tc3Request,
  { id, secret }: CloudKeys,
  service: string,
  at: number,
): string {
  const day = new Date(at * 1000).toISOString().slice(0, 10)
  const headers: Record<string, string> = { 'content-type': contentType, host, ...signed }
  const names = Object.keys(headers).toSorted()
  const canonicalHeaders = names.map((name) => `${name}:${(headers[name] ?? '').trim().toLowerCase()}\n`).join('')
  const canonical = ['POST', '/', '', canonicalHeaders, names.join(';'), sha256(body)].join('\n')
  const scope = `${day}/${service}/tc3_request`
  const key = hmac(hmac(hmac(`TC3${secret}`, day), service), 'tc3_request')
  const signature = hmac(key, ['TC3-HMAC-SHA256', String(at), scope, sha256(canonical)].join('\n')).toString('hex')
  return `TC3-HMAC-SHA256 Credential=${id}/${scope}, SignedHeaders=${names.join(';')}, Signature=${signature}`
}

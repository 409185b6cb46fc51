// template.ts - fills the variables of the templates of the backend `http`. Pure.
//
// A value is escaped for its position, so that it cannot become another path, header or JSON member. The host of a URL
// has no variables (URL_FORM in path/catalog.ts), so a template sends requests only to the host that it names.

import { WeftError } from '../../../base/errors.ts'
import { HIDDEN, Secret } from '../../../base/secret.ts'
import { formatAddress, formatNet, isIpv4Net, type Address, type Net } from '../../../net/address.ts'
import { TEMPLATE_VARIABLES, type Settings } from '../../catalog.ts'

export type Variables = Readonly<Record<string, string>>

/** The facts about this host from which the variables get their values. */
interface Host {
  /** The public IP that this node publishes in its lease. */
  readonly publicIp: Address
  readonly address: Address
  readonly nodeName: string
  readonly environment: Readonly<Record<string, string | undefined>>
}

/** Returns the values of a route's template variables, except {id} and {credential}. */
export function variablesOf(subnet: Net, { publicIp, address, nodeName, environment }: Host): Variables {
  const bits = subnet.prefixLength
  const { WEFT_INSTANCE: instance } = environment
  return {
    subnet: formatNet(subnet),
    subnetAddress: formatAddress(subnet.address),
    prefixLength: String(bits),
    netmask: isIpv4Net(subnet) ? formatAddress(bits === 0 ? 0 : (0xffff_ffff << (32 - bits)) >>> 0) : '',
    publicIp: formatAddress(publicIp),
    address: formatAddress(address),
    node: nodeName,
    // weftd knows the instance's name in the cloud only if the operator set WEFT_INSTANCE.
    ...(instance === undefined || instance === '' ? {} : { instance }),
  }
}

const VARIABLE = /\{([A-Za-z]+)\}/g

/**
 * Replaces the variables in a text by their values. Throws WeftError CONFIG for an unknown variable; `what` names the
 * option in the error.
 */
function fill(template: string, variables: Variables, what: string, escape: (value: string) => string): string {
  return template.replaceAll(VARIABLE, (_all, name: string) => {
    if (!TEMPLATE_VARIABLES.includes(name))
      throw new WeftError('CONFIG', `Backend.${what} has the unknown variable {${name}}`, {
        remedy: `take one of ${TEMPLATE_VARIABLES.map((each) => `{${each}}`).join(', ')}`,
      })
    const value = variables[name]
    if (value === undefined && name === 'instance')
      throw new WeftError('CONFIG', `Backend.${what} has {instance}, and WEFT_INSTANCE is not set`, {
        remedy: "set WEFT_INSTANCE in the environment of weftd to the cloud's name of this host",
      })
    // Refuse a request without the route's id, because it could remove more than one route.
    if (value === undefined && name === 'id')
      throw new WeftError('CONFIG', `Backend.${what} has {id}, and the list of routes has no id for this route`, {
        remedy: 'use {id} only in RemoveURL, RemoveBody and Headers, and set ListURL and ListID',
      })
    if (value === undefined)
      throw new WeftError('CONFIG', `Backend.${what} has {${name}}, and there is no CredentialFile`, {
        remedy: 'set Backend.CredentialFile to a file with the credential',
      })
    return escape(value)
  })
}

/** Replaces the variables in a URL. Throws WeftError CONFIG if a value would change the path. */
export const fillUrl = (template: string, variables: Variables, what: string): string =>
  fill(template, variables, what, (value) => {
    // A value must not be `.` or `..`: these segments remove parts of the path, also if they are percent-encoded (RFC
    // 3986 section 5.2.4). A surrogate without its pair has no percent-encoding.
    if (!/^\.{1,2}$|\p{Surrogate}/u.test(value)) return encodeURIComponent(value)
    throw new WeftError('CONFIG', `Backend.${what} gets the value ${JSON.stringify(value)}, which no URL can have`, {
      remedy: 'give the route another id, or the node another name',
    })
  })

/**
 * Replaces the variables in the template of a request's body. The template is a string, or an object whose strings are
 * all filled. Also returns the body's Content-Type.
 */
export function fillBody(
  template: unknown,
  variables: Variables,
  what: string,
): { readonly body: string; readonly type: string } | undefined {
  if (template === undefined) return undefined
  if (template instanceof Secret || typeof template === 'string')
    return { body: fill(plain(template, what), variables, what, (value) => value), type: 'text/plain; charset=utf-8' }
  return { body: JSON.stringify(fillDeep(template, variables, what)), type: 'application/json' }
}

function fillDeep(value: unknown, variables: Variables, what: string): unknown {
  if (value instanceof Secret && value.isJson) return fillDeep(JSON.parse(plain(value, what)), variables, what)
  if (value instanceof Secret || typeof value === 'string')
    return fill(plain(value, what), variables, what, (text) => text)
  if (Array.isArray(value)) return value.map((each) => fillDeep(each, variables, what))
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, fillDeep(each, variables, what)]))
}

/**
 * The names of headers that a template may not set: headers that weft's HTTP client sets itself, and headers that apply
 * to the connection instead of the request.
 */
const OWN_HEADERS = new Set(['host', 'content-length', 'transfer-encoding', 'connection', 'upgrade', 'te', 'trailer'])

/**
 * Fills the variables in the headers of a request. Throws WeftError CONFIG if a name or a value is not allowed in HTTP.
 */
export function fillHeaders(headers: unknown, variables: Variables): Record<string, string> {
  const filled: Record<string, string> = {}
  for (const [name, value] of Object.entries((headers as object | undefined) ?? {})) {
    const remedy = 'use only names and values that HTTP allows in headers'
    if (!/^[\w!#$%&'*+.^`|~-]+$/.test(name) || OWN_HEADERS.has(name.toLowerCase()))
      throw new WeftError('CONFIG', `Backend.Headers has the name ${JSON.stringify(name)}`, { remedy })
    if (typeof value !== 'string' && !(value instanceof Secret && !/^[[{]/.test(value.isJson ? value.reveal() : '')))
      throw new WeftError('CONFIG', `Backend.Headers.${name} is not a text`, { remedy })
    const text = fill(plain(value, `Headers.${name}`), variables, `Headers.${name}`, (each) => each)
    // RFC 9110 section 5.5 allows only these characters in the value of a header.
    if (!/^[\t\x20-\x7E\u0080-\u00FF]*$/.test(text))
      throw new WeftError('CONFIG', `Backend.Headers.${name} has a character that no header can have`, { remedy })
    filled[name.toLowerCase()] = text
  }
  return filled
}

/**
 * Returns the text of a template. Throws WeftError CONFIG if the text has a placeholder instead of a secret. The file
 * of weftd's last known state has such placeholders. A node that starts from this file must wait until it can read the
 * network configuration from its store.
 */
function plain(text: string | Secret, what: string): string {
  const value = typeof text === 'string' ? text : text.reveal()
  if (value.includes(HIDDEN))
    throw new WeftError('CONFIG', `Backend.${what} has a secret that only the store has`, {
      remedy: 'put the secret into a file, and name the file in Backend.CredentialFile',
    })
  return value
}

/**
 * Throws WeftError CONFIG if the template of a body or a header is invalid. The URLs were checked when the
 * configuration was read (path/catalog.ts).
 */
export function checkTemplates(settings: Settings<'http'>): void {
  const all = Object.fromEntries(TEMPLATE_VARIABLES.map((name) => [name, 'x']))
  const { credential: _, ...others } = all
  const known = settings.credentialFile === '' ? others : all
  fillHeaders(settings.headers, known)
  fillBody(settings.putBody, known, 'PutBody')
  fillBody(settings.removeBody, known, 'RemoveBody')
  fillBody(settings.listBody, known, 'ListBody')
}

// http.ts - the backend whose routes are in a switch, or in any other system with an HTTP API. The operator describes
// the HTTP requests that change the routes.

import type { Backend, BackendParts } from '../contract.ts'
import { createFabricBackend } from './fabric.ts'
import { HttpPublisher } from './fabric/http-publisher.ts'
import { checkTemplates } from './fabric/template.ts'

/** Creates the backend `http`. Throws WeftError CONFIG if a template is invalid. */
export function createHttpBackend(parts: BackendParts<'http'>): Backend {
  const { settings, log } = parts
  checkTemplates(settings)
  if (settings.credentialFile !== '' && [settings.putUrl, settings.removeUrl, settings.listUrl].some(isPlain))
    log.warn('Backend sends the text of CredentialFile over http, which is not encrypted; take https')
  return createFabricBackend('http', parts, (place) => new HttpPublisher(settings, place))
}

const isPlain = (url: string): boolean => url.startsWith('http:')
